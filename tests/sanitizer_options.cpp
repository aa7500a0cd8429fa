// What the sanitizers are told when the tests start.

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer would wait a second at exit for threads that still run. The emulator's idle fibers are such
// threads to it. Where a report says that it failed to restore a stack, TSAN_OPTIONS=history_size=7 finds it.
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=0"; }
#endif
