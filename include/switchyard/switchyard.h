/* Switchyard for C, and for whatever calls C: worlds, expert parallelism, attention, grouped matmul. The
 * shared library exports these functions and nothing else.
 *
 * Errors: a call returns SWITCHYARD_OK or another code, and switchyard_last_error() says more. No exception
 *   leaves it.
 * Structs: `size` comes first and is sizeof the struct. All other fields may be 0: that is the default. A
 *   library reads and writes no more bytes than `size` says, so that a program goes on working with a newer
 *   library.
 * Handles: each is destroyed by its own function, which takes NULL, too. A world lives until the last handle
 *   that was made from it is gone, in whatever order they are destroyed; memory of switchyard_allocate() goes
 *   with the world's own handle.
 * Streams: a call enqueues on the stream that it is given and returns. On CUDA that is a cudaStream_t of the
 *   rank's GPU (NULL: its default stream), also one that is being captured; on the host one of
 *   switchyard_stream_create(). SWITCHYARD_RANK_STREAM is the rank's own.
 * Threads: one thread may call for all ranks, or each rank may have a thread of its own. Calls for one rank,
 *   and calls that name no rank, must not overlap with others of the same object, by whichever handle; two
 *   calls of a step, or of a layer, that do are refused (SWITCHYARD_FAILED_PRECONDITION).
 * Forks: in a fork of the process that made a world every call for it is refused, and destroying its handles
 *   does nothing. A fork may make or join a world of its own; on CUDA, only if the parent has not
 *   used CUDA.
 * Memory: pointers of a step are into the rank's memory, aligned to 16 bytes, and stay valid until it has
 *   ended; rows that were offered, until a later one has (switchyard_ep_offer_expert_rows).
 * The C++ headers say more about each call; the names are theirs (docs/c.md). */
#ifndef SWITCHYARD_SWITCHYARD_H_
#define SWITCHYARD_SWITCHYARD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SWITCHYARD_API __attribute__((visibility("default")))
#else
#define SWITCHYARD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t switchyard_status;
enum {
  SWITCHYARD_OK = 0,
  SWITCHYARD_INVALID_ARGUMENT = 1,
  SWITCHYARD_FAILED_PRECONDITION = 2,
  SWITCHYARD_RESOURCE_EXHAUSTED = 3,
  SWITCHYARD_DEADLINE_EXCEEDED = 4,
  SWITCHYARD_DEADLOCK = 5,
  SWITCHYARD_UNAVAILABLE = 6,
  SWITCHYARD_INTERNAL = 7
};

/* The version of the library, such as "0.9.0". */
SWITCHYARD_API const char* switchyard_version(void);
/* The name of a code, such as "invalid argument". */
SWITCHYARD_API const char* switchyard_status_name(switchyard_status status);
/* What the last call of this thread that failed said; valid until the next one fails. "" before the first. */
SWITCHYARD_API const char* switchyard_last_error(void);

/* Worlds. */

typedef struct switchyard_world switchyard_world;
typedef void* switchyard_stream;
#define SWITCHYARD_RANK_STREAM ((switchyard_stream)(intptr_t)(-1))

enum { SWITCHYARD_TARGET_AUTO = 0, SWITCHYARD_TARGET_HOST = 1, SWITCHYARD_TARGET_CUDA = 2 };
enum { SWITCHYARD_TRANSPORT_PROCESS = 0, SWITCHYARD_TRANSPORT_SHMEM = 1 };

/* The caller's allocator: both functions, or none. They may be called from any thread. */
typedef struct switchyard_memory_functions {
  size_t size;
  void* context;
  /* Aligned to 256 bytes, free for use behind what is on `stream`; NULL: there is none. */
  void* (*allocate)(void* context, uint64_t bytes, int32_t gpu, switchyard_stream stream);
  /* What is on `stream` may still use it; NULL: nothing does. */
  void (*deallocate)(void* context, void* memory, uint64_t bytes, int32_t gpu, switchyard_stream stream);
} switchyard_memory_functions;

typedef struct switchyard_world_options {
  size_t size;
  int32_t target;
  int32_t n_ranks;                           /* 1..512; 0: 1 */
  int32_t num_gpus;                          /* 0: all, at most one per rank */
  uint32_t num_workers;                      /* host: OS threads that run kernels; 0: one per core */
  const switchyard_memory_functions* memory; /* NULL: the library's own */
} switchyard_world_options;

typedef struct switchyard_join_options {
  size_t size;
  int32_t transport;
  int32_t target;
  int32_t rank;            /* the first rank of this process */
  int32_t num_local_ranks; /* 0: 1 */
  int32_t n_ranks;         /* of the whole world; 0: 1 */
  int32_t gpu_number;      /* of the visible GPUs, counted from 1; 0: `rank` modulo how many there are */
  uint32_t num_workers;
  int32_t num_processes; /* with all_gather: how many it gathers from */
  uint64_t timeout_ns;   /* 0: 30 s */
  /* How processes find each other: this function, or `rendezvous`. It gives the `bytes` of each process to
   * all of them, one behind the other, as MPI_Allgather does; 0 is success. It is called twice. */
  int32_t (*all_gather)(void* context, const void* mine, uint64_t bytes, void* gathered);
  void* context;
  const char* rendezvous; /* "unix:/path", "unix:@name" or "tcp:HOST:PORT" */
  const char* token;      /* NULL: as the environment says */
  const switchyard_memory_functions* memory;
} switchyard_join_options;

typedef struct switchyard_world_info {
  size_t size;
  int32_t target; /* host or CUDA */
  int32_t n_ranks;
  int32_t first_local_rank;
  int32_t num_local_ranks;
} switchyard_world_info;

SWITCHYARD_API switchyard_status switchyard_world_create(const switchyard_world_options* options,
                                                         switchyard_world** world);
SWITCHYARD_API switchyard_status switchyard_world_join(const switchyard_join_options* options,
                                                       switchyard_world** world);
SWITCHYARD_API void switchyard_world_destroy(switchyard_world* world);
SWITCHYARD_API switchyard_status switchyard_world_get_info(const switchyard_world* world,
                                                           switchyard_world_info* info);
/* Waits for the ranks' own streams. */
SWITCHYARD_API switchyard_status switchyard_world_synchronize(const switchyard_world* world);
/* Makes a stream that lives as long as the world. */
SWITCHYARD_API switchyard_status switchyard_stream_create(const switchyard_world* world, int32_t rank,
                                                          switchyard_stream* stream);
SWITCHYARD_API switchyard_status switchyard_stream_synchronize(const switchyard_world* world, int32_t rank,
                                                               switchyard_stream stream);
/* Zeroed memory of a rank. deallocate() takes what allocate() of the same rank gave. */
SWITCHYARD_API switchyard_status switchyard_allocate(const switchyard_world* world, int32_t rank,
                                                     uint64_t bytes, void** memory);
SWITCHYARD_API switchyard_status switchyard_deallocate(const switchyard_world* world, int32_t rank,
                                                       void* memory);
/* Copies behind what is on the rank's own stream; returns when that is done. Either side may be host memory.
 */
SWITCHYARD_API switchyard_status switchyard_copy(const switchyard_world* world, int32_t rank,
                                                 void* destination, const void* source, uint64_t bytes);

/* Token formats. */

/* What an element of a tensor of scales is: a float, a scale of a byte (e8m0, in nvfp4 e4m3), four e8m0 in a
 * word, or a byte of a scale tile. */
enum {
  SWITCHYARD_SCALES_FLOAT = 0,
  SWITCHYARD_SCALES_BYTE = 1,
  SWITCHYARD_SCALES_WORD = 2,
  SWITCHYARD_SCALES_TILED = 3
};

/* How rows of a format lie in memory, and their scales (docs/formats.md). */
typedef struct switchyard_format_info {
  size_t size;
  int32_t element_bits;    /* of a code: 16, 8, 6 or 4 */
  int32_t group_size;      /* elements that share a scale */
  int32_t hidden_multiple; /* what hidden must be a multiple of */
  int32_t row_alignment;   /* the rows of a group begin at a multiple of it */
  uint32_t row_bytes;
  int32_t num_scales; /* of a row; 0: there are none */
  int32_t scale_element;
  int32_t num_scale_dimensions; /* of the tensor of scales: 2, of scale tiles 1, without scales 0 */
  uint64_t scale_shape[2];      /* of max_rows rows */
  uint64_t scales_bytes;
} switchyard_format_info;

/* `format` is a name of docs/formats.md, such as "fp8". */
SWITCHYARD_API switchyard_status switchyard_format_get_info(const char* format, int32_t hidden,
                                                            uint32_t max_rows, switchyard_format_info* info);

/* Expert parallelism. */

typedef struct switchyard_ep switchyard_ep;

enum { SWITCHYARD_PROTOCOL_AUTOMATIC = 0, SWITCHYARD_PROTOCOL_SLOTTED = 1, SWITCHYARD_PROTOCOL_DIRECT = 2 };
enum { SWITCHYARD_ROWS_RAGGED = 0, SWITCHYARD_ROWS_MASKED = 1, SWITCHYARD_ROWS_PER_RANK = 2 };
enum { SWITCHYARD_COMBINE_BF16 = 0, SWITCHYARD_COMBINE_FP8 = 1 };
enum { SWITCHYARD_REDUCTION_WEIGHTED = 0, SWITCHYARD_REDUCTION_UNREDUCED = 1 };
enum { SWITCHYARD_INPUT_BF16 = 0, SWITCHYARD_INPUT_ENCODED = 1 };
enum { SWITCHYARD_DELIVERY_AUTOMATIC = 0, SWITCHYARD_DELIVERY_SENDER = 1, SWITCHYARD_DELIVERY_RECEIVER = 2 };
enum { SWITCHYARD_UNWRITTEN_LEFT = 0, SWITCHYARD_UNWRITTEN_MARKED = 1, SWITCHYARD_UNWRITTEN_ZEROED = 2 };
#define SWITCHYARD_ALL_RANKS (-1)

typedef struct switchyard_ep_config {
  size_t size;
  int32_t n_experts;
  int32_t top_k;
  int32_t hidden;
  int32_t max_tokens_per_rank;
  int32_t n_sms;
  int32_t num_threads;
  uint64_t timeout_ns;       /* 0: 5 s */
  uint64_t first_timeout_ns; /* 0: 60 s, or timeout_ns if that is given */
  int32_t dependent_launch;
  int32_t protocol;
  double capacity_factor;
  int32_t row_layout;
  int32_t row_alignment; /* 0: 1 */
  int32_t max_rows_per_expert;
  int32_t combine_format;
  const char* dispatch_format; /* a name of docs/formats.md, such as "fp8"; NULL: "bf16" */
  float input_scale;           /* 0: 1 */
  int32_t num_expert_input_scales;
  const float* expert_input_scales;
  int32_t has_shared_expert;
  int32_t skips_all_to_all;
  int32_t p2p_world_size;
  int32_t allreduce_world_size; /* 0: 1; SWITCHYARD_ALL_RANKS */
  int32_t max_experts_per_rank;
  int32_t counts_experts;
  /* The experts of rank 0, then those of rank 1, .., and how many each has; NULL: evenly. */
  const int32_t* placement;
  const int32_t* num_experts_of_rank; /* [ranks] */
  int32_t steps_in_flight;            /* 0: 1 */
  int32_t reserved;                   /* not read: where older structs ended in padding */
  int32_t row_sets;                   /* 0: 1 */
  int32_t row_delivery;
  int32_t reduce_at_owner; /* combine writes to expert_rows then */
  int32_t reserved_end;    /* 0 */
} switchyard_ep_config;

typedef struct switchyard_ep_info {
  size_t size;
  int32_t n_ranks;
  int32_t n_local_experts;
  int32_t num_groups;
  int32_t n_sms;
  int32_t protocol;
  int32_t max_rows_per_expert;
  uint64_t max_recv_rows;
  uint32_t dispatch_message_bytes;
  uint32_t combine_message_bytes;
  uint64_t bytes_per_rank;
  uint64_t rows_per_set;
  int32_t row_delivery;
  int32_t reserved; /* 0 */
} switchyard_ep_info;

typedef struct switchyard_row_buffers {
  size_t size;
  void* rows; /* of the dispatch format */
  void* scales;
  int32_t* src_info;
  void* expert_outputs; /* bf16; NULL where combine takes fp8 */
  void* encoded_outputs;
  uint32_t max_rows;
  int32_t reserved;                  /* 0 */
  const float* expert_tensor_scales; /* NVFP4 by expert: of the local experts' rows; else NULL */
} switchyard_row_buffers;

typedef struct switchyard_dispatch_input {
  size_t size;
  const void* tokens; /* of input_format */
  const int32_t* topk_ids;
  int32_t num_tokens;
  const float* topk_weights;    /* of rows per rank, and with reduce_at_owner */
  const int64_t* topk_ids_64;   /* instead of topk_ids, which is NULL then, also in combine */
  uint64_t token_stride_bytes;  /* from a token to the next; 0: contiguous */
  const void* scales;           /* of encoded tokens */
  uint64_t scales_stride_bytes; /* from a token's to the next's; 0: contiguous */
  const float* input_scale;     /* NVFP4, in the rank's memory; NULL: the configuration's */
  int32_t input_format;
  uint64_t* rank_wait_ns; /* of dispatch_async; NULL: not wanted */
  int32_t row_set;
  int32_t reserved; /* 0 */
} switchyard_dispatch_input;

typedef struct switchyard_dispatch_output {
  size_t size;
  void* rows;
  int32_t* src_info;
  uint32_t* row_offsets;
  int32_t* expert_ids;
  void* scales;
  uint32_t* scale_row_offsets;
  uint32_t* row_counts;
  int32_t* src_ranks;
  uint32_t max_rows;
  int32_t unwritten;
  int32_t* row_experts; /* of rows per rank, as the next; NULL: not wanted */
  float* row_weights;
  uint64_t* rank_wait_ns; /* [ranks], to which the waits for each rank are added; NULL: not wanted */
  int32_t* expert_totals; /* NULL: not wanted, as the next two */
  uint64_t* source_ranges;
  int32_t* row_totals;
} switchyard_dispatch_output;

typedef struct switchyard_combine_input {
  size_t size;
  const void* expert_rows; /* with reduce_at_owner combine writes to them */
  const int32_t* src_info;
  /* 1, of all ranks, direct protocol: rows that were offered may be written to behind the combine. */
  int32_t awaits_readers;
  int32_t reserved; /* 0 */
} switchyard_combine_input;

typedef struct switchyard_combine_output {
  size_t size;
  const int32_t* topk_ids;
  const float* topk_weights;
  void* output; /* bf16 */
  int32_t num_tokens;
  int32_t reduction;
  uint64_t output_stride_bytes; /* from a row of the output to the next; 0: contiguous */
  uint64_t* rank_wait_ns;       /* as in dispatch */
} switchyard_combine_output;

/* What the experts made of the rows that dispatch wrote, in memory of the caller's. */
typedef struct switchyard_expert_rows {
  size_t size;
  const void* rows;            /* bf16 */
  uint64_t num_rows;           /* at least as many as the step has; else a fault */
  const uint32_t* row_offsets; /* as that dispatch wrote them, as the next */
  const uint32_t* row_counts;
  uint32_t rows_per_group; /* 0: they lie as those of the row buffers */
  int32_t reserved;        /* 0 */
} switchyard_expert_rows;

typedef struct switchyard_routing_input {
  size_t size;
  const int64_t* topk_ids;
  int32_t num_tokens;
  int32_t top_k;
  int32_t n_experts;
  int32_t reserved; /* 0 */
} switchyard_routing_input;

typedef struct switchyard_routing_counts {
  size_t size;
  int32_t* tokens_of_rank;    /* [ranks], added to what is there */
  int32_t* choices_of_expert; /* [n_experts], likewise */
  uint8_t* is_token_in_rank;  /* [num_tokens][ranks] */
} switchyard_routing_counts;

enum {
  SWITCHYARD_FAULT_NONE = 0,
  SWITCHYARD_FAULT_TIMEOUT = 1,
  SWITCHYARD_FAULT_BAD_EXPERT_ID = 2,
  SWITCHYARD_FAULT_TOO_MANY_ROWS = 3,
  SWITCHYARD_FAULT_OVER_CAPACITY = 4,
  SWITCHYARD_FAULT_TOKEN_COUNT_MISMATCH = 5,
  SWITCHYARD_FAULT_BAD_SOURCE_INFO = 6,
  SWITCHYARD_FAULT_NO_EXPERT_ROWS = 7,
  SWITCHYARD_FAULT_PEER_ENDED = 8,
  SWITCHYARD_FAULT_CALLED_OFF = 9
};
enum {
  SWITCHYARD_PHASE_NONE = 0,
  SWITCHYARD_PHASE_DISPATCH_ASYNC = 1,
  SWITCHYARD_PHASE_DISPATCH_WAIT = 2,
  SWITCHYARD_PHASE_COMBINE_ASYNC = 3,
  SWITCHYARD_PHASE_COMBINE_WAIT = 4,
  SWITCHYARD_PHASE_ALL_REDUCE = 5
};

/* What a rank itself found wrong, or was last told of a step that was skipped; kind is SWITCHYARD_FAULT_NONE
 * if neither. */
typedef struct switchyard_fault {
  size_t size;
  int32_t kind;
  int32_t phase;
  int32_t waiting_rank;
  int32_t late_rank; /* -1: no rank in particular */
  int32_t expert;    /* -1: no expert in particular */
  uint64_t expected;
  uint64_t seen;
  uint64_t elapsed_ns;
} switchyard_fault;

/* What create() and row_buffers() would allocate on each rank. */
SWITCHYARD_API switchyard_status switchyard_ep_memory_needed(const switchyard_ep_config* config,
                                                             int32_t n_ranks, uint64_t* bytes);
SWITCHYARD_API switchyard_status switchyard_ep_create(const switchyard_world* world,
                                                      const switchyard_ep_config* config, switchyard_ep** ep);
SWITCHYARD_API void switchyard_ep_destroy(switchyard_ep* ep);
/* A handle to one of steps_in_flight, counted from 0, which is the object itself, from any handle of it. It
 * is destroyed like any other; the object lives as long as one of its handles. */
SWITCHYARD_API switchyard_status switchyard_ep_flight(switchyard_ep* ep, int32_t flight_idx,
                                                      switchyard_ep** flight);
SWITCHYARD_API switchyard_status switchyard_ep_get_info(const switchyard_ep* ep, switchyard_ep_info* info);
SWITCHYARD_API switchyard_status switchyard_ep_row_buffers(switchyard_ep* ep, int32_t rank,
                                                           switchyard_row_buffers* buffers);

SWITCHYARD_API switchyard_status switchyard_ep_dispatch(switchyard_ep* ep, int32_t rank,
                                                        const switchyard_dispatch_input* input,
                                                        const switchyard_dispatch_output* output,
                                                        switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_dispatch_async(switchyard_ep* ep, int32_t rank,
                                                              const switchyard_dispatch_input* input,
                                                              switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_dispatch_wait(switchyard_ep* ep, int32_t rank,
                                                             const switchyard_dispatch_output* output,
                                                             switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_combine(switchyard_ep* ep, int32_t rank,
                                                       const switchyard_combine_input* input,
                                                       const switchyard_combine_output* output,
                                                       switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_combine_async(switchyard_ep* ep, int32_t rank,
                                                             const switchyard_combine_input* input,
                                                             switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_combine_wait(switchyard_ep* ep, int32_t rank,
                                                            const switchyard_combine_output* output,
                                                            switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_all_reduce(switchyard_ep* ep, int32_t rank, void* values,
                                                          int32_t num_tokens, switchyard_stream stream);

/* Steps that are not a dispatch and its combine, of the direct protocol: without a combine; a combine again,
 * of the rows of the last dispatch; one that all ranks skip, since this one cannot do its part. */
SWITCHYARD_API switchyard_status switchyard_ep_abandon_step(switchyard_ep* ep, int32_t rank);
SWITCHYARD_API switchyard_status switchyard_ep_reopen_step(switchyard_ep* ep, int32_t rank,
                                                           switchyard_stream stream);
SWITCHYARD_API switchyard_status switchyard_ep_call_off_step(switchyard_ep* ep, int32_t rank,
                                                             switchyard_stream stream);
/* Copies rows to where a combine of the direct protocol finds them. */
SWITCHYARD_API switchyard_status switchyard_ep_store_expert_rows(switchyard_ep* ep, int32_t rank,
                                                                 const switchyard_expert_rows* rows,
                                                                 switchyard_stream stream);
/* Whether such a combine may be given `rows`, bf16, where they are: 1 if peers can read them, else 0. They
 * are all rows of the step, laid out as those of the row buffers. Peers read them in their own combines: they
 * must stay as they are until this rank's next dispatch or reopen_step has ended, or a combine with
 * awaits_readers. */
SWITCHYARD_API switchyard_status switchyard_ep_offer_expert_rows(switchyard_ep* ep, int32_t rank,
                                                                 const void* rows, switchyard_stream stream,
                                                                 int32_t* can_be_read);
/* offsets[num_offsets], [n_local_experts][ranks], per rank [ranks]: where the rows of each rank begin. */
SWITCHYARD_API switchyard_status switchyard_ep_source_row_offsets(const switchyard_ep* ep, int32_t rank,
                                                                  uint32_t* offsets, int32_t num_offsets);
/* Counts where tokens would go, for callers who ask that before a dispatch, which needs none of it. */
SWITCHYARD_API switchyard_status switchyard_count_routing(const switchyard_world* world, int32_t rank,
                                                          const switchyard_routing_input* input,
                                                          const switchyard_routing_counts* counts,
                                                          switchyard_stream stream);

SWITCHYARD_API switchyard_status switchyard_ep_warm_up(switchyard_ep* ep);
/* Waits for the stream; SWITCHYARD_RANK_STREAM: for everything that calls of the rank have enqueued. */
SWITCHYARD_API switchyard_status switchyard_ep_synchronize(switchyard_ep* ep, int32_t rank,
                                                           switchyard_stream stream);
/* Waits for nothing. */
SWITCHYARD_API switchyard_status switchyard_ep_poll(switchyard_ep* ep, int32_t rank);
SWITCHYARD_API switchyard_status switchyard_ep_fault(const switchyard_ep* ep, int32_t rank,
                                                     switchyard_fault* fault);
SWITCHYARD_API switchyard_status switchyard_ep_reset(switchyard_ep* ep);
/* With these ranks of the world, ascending; experts are spread evenly over them. */
SWITCHYARD_API switchyard_status switchyard_ep_reset_to(switchyard_ep* ep, const int32_t* world_ranks,
                                                        int32_t num_ranks);
/* As in switchyard_ep_config. */
SWITCHYARD_API switchyard_status switchyard_ep_set_placement(switchyard_ep* ep, const int32_t* placement,
                                                             const int32_t* num_experts_of_rank);
/* counts[n_experts]: the rows that this rank has sent to each expert. */
SWITCHYARD_API switchyard_status switchyard_ep_expert_counts(const switchyard_ep* ep, int32_t rank,
                                                             int64_t* counts, int32_t num_counts);
SWITCHYARD_API switchyard_status switchyard_ep_clear_expert_counts(switchyard_ep* ep, int32_t rank);

/* Attention. */

typedef struct switchyard_attention switchyard_attention;

enum { SWITCHYARD_KV_BF16 = 0, SWITCHYARD_KV_FP8 = 1 };

typedef struct switchyard_attention_shape {
  size_t size;
  int32_t head_dim;     /* 0: 128 */
  int32_t num_heads;    /* 0: 1 */
  int32_t num_kv_heads; /* 0: 1 */
  int32_t batch_size;   /* 0: 1 */
  int32_t max_query_len;
  int32_t max_key_len;
  int64_t num_query_rows;
  int64_t num_key_rows;
  int32_t causal;
  int32_t window;
  int32_t page_size;
  int32_t pages_per_sequence;
  float scale;
  int32_t num_blocks;
  int32_t value_dim; /* MLA: 512, with head_dim 576 */
  int32_t kv_format;
  float soft_cap;
  int32_t reserved; /* 0 */
} switchyard_attention_shape;

typedef struct switchyard_attention_tensors {
  size_t size;
  const void* queries;
  const void* keys;
  const void* values; /* NULL with value_dim */
  void* output;
  float* lse;
  const uint32_t* query_offsets;
  const uint32_t* key_offsets;
  const uint32_t* key_lengths;
  const int32_t* page_table;
  const float* sinks;
  const uint8_t* key_codes; /* fp8: instead of keys, as the next instead of values */
  const uint8_t* value_codes;
  const float* key_scales; /* [num_kv_heads], of the codes, as the next */
  const float* value_scales;
} switchyard_attention_tensors;

SWITCHYARD_API switchyard_status switchyard_attention_create(const switchyard_world* world, int32_t rank,
                                                             const switchyard_attention_shape* shape,
                                                             switchyard_attention** attention);
SWITCHYARD_API void switchyard_attention_destroy(switchyard_attention* attention);
SWITCHYARD_API switchyard_status switchyard_attention_run(switchyard_attention* attention,
                                                          const switchyard_attention_tensors* tensors,
                                                          switchyard_stream stream);

/* Grouped matmul. */

typedef struct switchyard_matmul switchyard_matmul;

enum { SWITCHYARD_MATMUL_BF16 = 0, SWITCHYARD_MATMUL_FP8 = 1, SWITCHYARD_MATMUL_FP8_ROWS = 2 };
enum {
  SWITCHYARD_ACTIVATION_NONE = 0,
  SWITCHYARD_ACTIVATION_SILU = 1,
  SWITCHYARD_ACTIVATION_GELU = 2,
  SWITCHYARD_ACTIVATION_CLAMPED_SWIGLU = 3
};
enum { SWITCHYARD_GATES_STACKED = 0, SWITCHYARD_GATES_INTERLEAVED = 1 };
enum {
  SWITCHYARD_WEIGHTS_AS_ROWS = 0,
  SWITCHYARD_WEIGHTS_MXFP4 = 1,
  SWITCHYARD_WEIGHTS_NVFP4 = 2,
  SWITCHYARD_WEIGHTS_MXFP8 = 3
};
enum {
  SWITCHYARD_ROW_SCALES_FLOAT = 0,
  SWITCHYARD_ROW_SCALES_PACKED_E8M0 = 1,
  SWITCHYARD_ROW_SCALES_FLOAT_BY_ROW = 2
};

typedef struct switchyard_matmul_shape {
  size_t size;
  int32_t num_groups; /* 0: 1 */
  int32_t num_experts;
  int32_t element;
  int32_t inner;
  int32_t columns;
  int32_t activation;
  int32_t gate_layout;
  int32_t output; /* SWITCHYARD_MATMUL_BF16, _FP8 or _FP8_ROWS */
  int64_t max_rows;
  int64_t group_capacity;
  int64_t expected_rows_per_group;
  int32_t num_blocks;
  int32_t reserved; /* not read: where older structs ended in padding */
  int32_t weights;
  int32_t row_scales;     /* of fp8 */
  const char* row_format; /* of bf16: a name, as dispatch_format; rows are decoded. NULL: "bf16" */
  int64_t prefetch_bytes; /* CUDA: of the weights, asked for behind the launch in front */
} switchyard_matmul_shape;

typedef struct switchyard_matmul_tensors {
  size_t size;
  const void* rows;
  const void* weights;
  void* output;
  const uint32_t* row_offsets;
  const uint32_t* row_counts;
  const int32_t* expert_ids;
  const void* row_scales; /* of fp8, as the shape says; of a row_format, as dispatch writes them */
  const void* weight_scales;
  const float* bias;
  const float* row_weights;
  float* output_scales;
  const float* weight_tensor_scales; /* [num_experts], of coded weights; NULL: 1 */
  /* Rows in NVFP4: their tensor scale is row_tensor_scale, or in the rank's memory. The last
   * num_row_tensor_scales groups (0: all) have one each in row_tensor_scales, unless that is NULL. */
  const float* device_row_tensor_scale;
  const float* row_tensor_scales;
  int32_t num_row_tensor_scales;
  float row_tensor_scale; /* 0: 1 */
} switchyard_matmul_tensors;

SWITCHYARD_API switchyard_status switchyard_matmul_create(const switchyard_world* world, int32_t rank,
                                                          const switchyard_matmul_shape* shape,
                                                          switchyard_matmul** matmul);
SWITCHYARD_API void switchyard_matmul_destroy(switchyard_matmul* matmul);
SWITCHYARD_API switchyard_status switchyard_matmul_run(switchyard_matmul* matmul,
                                                       const switchyard_matmul_tensors* tensors,
                                                       switchyard_stream stream);

/* Whole layers: router, dispatch, gate_up with the activation, down and combine. */

typedef struct switchyard_moe_layer switchyard_moe_layer;

enum { SWITCHYARD_GATE_UP_BEHIND_DISPATCH = 0, SWITCHYARD_GATE_UP_WITH_ROWS = 1 };
enum { SWITCHYARD_COMBINE_BEHIND_EXPERTS = 0, SWITCHYARD_COMBINE_WITH_EXPERTS = 1 };
enum { SWITCHYARD_LAUNCHES_FUSED = 0, SWITCHYARD_LAUNCHES_SPLIT = 1 };

typedef struct switchyard_moe_layer_config {
  size_t size;
  const switchyard_ep_config* ep; /* dispatch_format is what gate_up reads */
  int32_t weights;                /* as in switchyard_matmul_shape */
  int32_t expert_width;
  int32_t activation; /* 0: SWITCHYARD_ACTIVATION_SILU */
  int32_t gate_layout;
  int32_t expected_tokens_per_rank; /* 0: max_tokens_per_rank */
  int32_t num_matmul_blocks;        /* 0: all */
  int32_t gate_up_start;
  int32_t combine_start;
  int32_t launches;
  int32_t reserved;       /* 0 */
  int64_t prefetch_bytes; /* CUDA: of the weights of each matmul, asked for before it starts */
} switchyard_moe_layer_config;

/* The weights of the groups of one rank: the shared expert's first, if there is one, then those of the local
 * experts, on every rank as many as one of them has or can have (num_groups of switchyard_ep_info). They must
 * stay valid as long as the layer. */
typedef struct switchyard_expert_weights {
  size_t size;
  const void* gate_up;        /* [num_groups][2 * expert_width][hidden] */
  const void* down;           /* [num_groups][hidden][expert_width] */
  const void* gate_up_scales; /* of fp8 and of codes, as weight_scales of a matmul */
  const void* down_scales;
  const float* gate_up_bias;          /* [num_groups][2 * expert_width]; NULL: none */
  const float* down_bias;             /* [num_groups][hidden]; NULL: none */
  const float* gate_up_tensor_scales; /* [num_groups], of codes; NULL: 1 */
  const float* down_tensor_scales;
} switchyard_expert_weights;

/* Either logits, or topk_ids (of 32 or of 64 bits) with topk_weights. */
typedef struct switchyard_moe_layer_step {
  size_t size;
  const void* tokens;  /* of input_format */
  const float* logits; /* [num_tokens][n_experts] */
  const int32_t* topk_ids;
  const float* topk_weights;
  void* output; /* bf16, [num_tokens][hidden] */
  int32_t num_tokens;
  int32_t input_format;
  const int64_t* topk_ids_64;
  const void* scales;          /* of encoded tokens */
  const float* input_scale;    /* NVFP4, in the rank's memory; NULL: the configuration's */
  uint64_t token_stride_bytes; /* from a token to the next; 0: contiguous, as the next two */
  uint64_t scales_stride_bytes;
  uint64_t output_stride_bytes;
} switchyard_moe_layer_step;

/* weights[ranks]; those of ranks of other processes may be NULL. All processes make it together. */
SWITCHYARD_API switchyard_status switchyard_moe_layer_create(const switchyard_world* world,
                                                             const switchyard_moe_layer_config* config,
                                                             const switchyard_expert_weights* const* weights,
                                                             switchyard_moe_layer** layer);
SWITCHYARD_API void switchyard_moe_layer_destroy(switchyard_moe_layer* layer);
/* Enqueues a whole step of a rank. Every rank runs every step. */
SWITCHYARD_API switchyard_status switchyard_moe_layer_run(switchyard_moe_layer* layer, int32_t rank,
                                                          const switchyard_moe_layer_step* step,
                                                          switchyard_stream stream);
/* A handle to one of ep->steps_in_flight, as switchyard_ep_flight() returns. */
SWITCHYARD_API switchyard_status switchyard_moe_layer_flight(switchyard_moe_layer* layer, int32_t flight_idx,
                                                             switchyard_moe_layer** flight);
/* A handle to what the layer dispatches and combines with, destroyed like any other: to synchronize, poll and
 * reset. */
SWITCHYARD_API switchyard_status switchyard_moe_layer_ep(switchyard_moe_layer* layer, switchyard_ep** ep);

#ifdef __cplusplus
}
#endif

#endif /* SWITCHYARD_SWITCHYARD_H_ */
