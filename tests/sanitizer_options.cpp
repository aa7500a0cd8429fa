// What the sanitizers are told when the tests start.

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer would wait a second at exit for threads that still run. The emulator's idle fibers are such
// threads to it. It keeps a history of what each did, to name the other side of a race: a short one takes a
// tenth less time. Where a report says that it failed to restore a stack, TSAN_OPTIONS=history_size=7 finds
// it.
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=0:history_size=0"; }
#endif
