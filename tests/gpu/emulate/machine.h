/* machine.h: the inside of the emulator: a block under way.  Only emulate*.cc include it. */
#ifndef PENSTOCK_TESTS_GPU_MACHINE_H
#define PENSTOCK_TESTS_GPU_MACHINE_H

#include "gpu/device.cuh"

#include <vector>

enum { SHARED_BASE = 1024, SHARED_MOST = 227 << 10, THREADS_MOST = 1024, WARPS_MOST = THREADS_MOST / 32, BARRIERS = 16 };

enum thread_state { THREAD_READY, THREAD_WARP, THREAD_BARRIER, THREAD_MBARRIER, THREAD_STORES, THREAD_DEPENDENCY,
	THREAD_ENDED };

/* A cp.async on its way. */
struct small_copy {
	char       *to;
	const void *from;
	uint32_t    bytes, group;
	bool        early; /* started before dependency_wait */
};

struct thread {
	void             *stack_pointer, *fake_stack;
	enum thread_state state;
	uint32_t          number, lane, warp;
	uint3             index;
	/* At a collective of the warp: */
	const char    *what;
	uint32_t       key, mask;
	void          *arg;
	emulate_apply *apply;
	/* At a barrier, an mbarrier, or waiting for stores: */
	uint32_t  barrier, parity;
	mbarrier *mbar;
	uint32_t  stores, copies; /* groups so far */
	std::vector<small_copy> pending;
};

/* Accumulators of a warp that wgmma owns: POINTERS are the lanes' arrays, which hold poison meanwhile. */
struct flight {
	void                 *pointers[32];
	uint32_t              count; /* words of a lane */
	std::vector<uint32_t> values;
	uint32_t              group; /* of its last operation */
};

struct wgmma_operation {
	struct emulate_wgmma_call call;
	uint32_t a[32][4], group, number;
	void    *acc; /* lane 0's: names the flight */
};

struct warp {
	uint32_t there, ready, ended; /* lanes */
	uint64_t stalled_until;
	/* The collective at which lanes wait; zero MET: at none, or at several, which are found lane by lane. */
	const char *what;
	uint32_t    key, mask, met, waiting;
	/* wgmma */
	bool     fenced;
	uint32_t issued, groups; /* operations; groups committed */
	std::vector<wgmma_operation> operations;
	std::vector<flight>          flights;
};

struct barrier {
	uint32_t expected, arrived, value, result;
	uint32_t lanes[WARPS_MOST];
};

struct mbarrier_state {
	mbarrier *at;
	uint32_t  count, pending;
	int64_t   bytes;
	int32_t   phase;
	std::vector<int32_t> seen; /* of each thread: the last phase that it knows completed; −2: none */
};

enum copy_kind { COPY_BULK, COPY_TENSOR, COPY_STORE };
struct async_copy {
	uint64_t       due;
	enum copy_kind kind;
	char          *to;
	const char    *from;
	uint32_t       bytes, thread, group;
	mbarrier      *mbar;
	tensor_map     map; /* a copy: the parameter lies on the stack of a thread that may have ended */
	int32_t        at[5];
	bool           early; /* started before dependency_wait */
};

struct machine {
	struct emulate_options options;
	uint64_t random, tick, clock;
	dim3     grid, block;
	uint32_t threads, warps, live;
	char    *shared, *view; /* the window; what wgmma and stores see of it */
	size_t   shared_bytes;
	char    *stacks;
	void    *scheduler;
	void    *scheduler_fake;
	const void *scheduler_stack;
	size_t   scheduler_stack_bytes;
	struct thread *current;
	bool     running, failed, hidden;
	std::vector<char> saved; /* what is hidden until dependency_wait */
	uint32_t idle_yields;
	char     error[4096];
	void   (*body)(void *);
	void    *context;
	struct thread  thread[THREADS_MOST];
	struct warp    warp[WARPS_MOST];
	struct barrier barrier[BARRIERS];
	std::vector<mbarrier_state>   mbarriers;
	std::vector<async_copy>       copies;
	std::vector<wgmma_operation>  groups[WARPS_MOST / 4]; /* what the first warp of a warpgroup issued: the others must agree */
};
extern struct machine machine;

uint64_t random_below(uint64_t count);
void     thread_block(enum thread_state state); /* until someone calls thread_wake */
void     thread_wake(struct thread *thread);
uint64_t random_delay(void);

void     hide_before(void);  /* options.before becomes poison */
bool     show_before(void);  /* and is back; false: it was written meanwhile */

/* emulate_copy.cc */
void copies_deliver(bool all);   /* those that are due */
void thread_copies_end(struct thread *thread);
void mbarrier_complete(mbarrier *b, int64_t bytes);
const mbarrier_state *mbarrier_find(const mbarrier *b);

/* emulate_matrix.cc */
void warp_begin(struct warp *warp);
void warp_end(struct warp *warp);

#endif
