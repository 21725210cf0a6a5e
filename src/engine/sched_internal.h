/* sched_internal.h: what sched.c, sched_queue.c, sched_plan.c and sched_cost.c share; nobody else includes it. */
#ifndef PENSTOCK_ENGINE_SCHED_INTERNAL_H
#define PENSTOCK_ENGINE_SCHED_INTERNAL_H

#include "engine/estimate.h"
#include "engine/sched.h"
#include "engine/sched_heap.h"

enum sched_state {
	SCHED_FREE,
	SCHED_WAITING,  /* in the expiry heap; in the queue unless paused */
	SCHED_SETTLING, /* evicted while a plan named it: waits as soon as that one is confirmed */
	SCHED_RUNNING,  /* on the running list, may hold blocks */
	SCHED_EXPIRED   /* told to the engine, which has yet to remove it */
};

/* Short and long prompts queue apart. */
enum sched_kind { SCHED_SHORT, SCHED_LONG, SCHED_KINDS };

struct sched_entry {
	uint8_t  state, kind, outstanding;
	bool     paused, resumed;  /* resumed: waits before others of its class */
	bool     charged;          /* was admitted once */
	bool     estimated;        /* by the scheduler, not by the caller */
	int32_t  class;
	uint32_t length, computed; /* upper bounds: outstanding plans included */
	uint32_t prompt, limit;    /* length at the start, and the length it may reach */
	uint32_t expected;         /* length it is expected to reach */
	uint32_t cached;           /* of the prompt, at the start: not charged */
	uint32_t held;             /* blocks after the last plan */
	uint32_t shared, kept;     /* of them those that others account for, and those that are not free when it loses them */
	uint32_t served;           /* prompt tokens ever computed: what its key pays for */
	uint32_t charge;           /* tokens its key has been charged */
	uint32_t drafts;           /* guesses that the next plan may take along */
	uint32_t previous, next;   /* running list */
	uint32_t flow, queue;      /* the flow that pays, and the one it waits in */
	uint64_t arrival_ns, deadline_ns, expiry_ns, paused_ns;
	uint64_t score;            /* order inside a flow, lower first */
	uint64_t serial;           /* order of sched_add, then of admission */
	uint64_t evicted_at;       /* number of the plan */
	struct {
		uint32_t rows, drafts;
		bool     sampled;
	} plans[SCHED_DEPTH_MAX]; /* outstanding ones, oldest first */
};

/* Those who wait in one class for one key (see sched_queue.c). */
enum flow_type { FLOW_RESUMED, FLOW_KEY, FLOW_CLASS };
struct sched_flow {
	uint8_t  type;
	int32_t  class;
	uint64_t key;
	uint64_t counter;              /* service so far (FLOW_KEY); of who was admitted last (FLOW_CLASS) */
	uint32_t waiting[SCHED_KINDS]; /* heaps of entries */
	uint32_t pins;                 /* entries or flows that need it */
	uint32_t class_flow;           /* FLOW_KEY: the FLOW_CLASS of its class */
	uint32_t chain;                /* next in its hash bucket, or of the unused ones */
	uint32_t older, newer;         /* while idle: by how long */
};

struct sched_cost {
	double   weight, sums[3][3], products[3]; /* normal equations of step time over (1, rows, sequences) */
	double   step, row, sequence;             /* the fit, ns */
	double   ratio;                           /* of measured to predicted time, smoothed */
	uint64_t steps;
};

struct sched_candidate {
	int32_t  class;
	uint64_t score;
	uint32_t handle;
};

/* For the order of flows, which depends on the kind. */
struct sched_flow_order {
	const struct sched *sched;
	enum sched_kind     kind;
};

struct sched {
	struct sched_options options;
	struct sched_entry  *entries; /* [capacity] */

	/* sched_queue.c */
	struct sched_node      *entry_nodes, *expiry_nodes, *flow_nodes[SCHED_KINDS];
	struct sched_heaps      by_score, by_expiry, by_turn[SCHED_KINDS];
	struct sched_flow_order flow_order[SCHED_KINDS];
	uint32_t                expiring, turn[SCHED_KINDS]; /* heaps: of entries, of flows */
	struct sched_flow      *flows; /* [flow_count] */
	uint32_t                flow_count, unused_flows, oldest_idle, newest_idle;
	uint32_t               *buckets; /* [bucket_count], a power of two */
	uint32_t                bucket_count;

	/* Running, in order of admission. */
	uint32_t first, last, running_count, waiting_count;
	uint32_t outstanding; /* items of unconfirmed plans */
	uint32_t margin;      /* blocks that admission leaves alone after a shortage */
	uint64_t now_ns, serial, plan_number;
	struct {
		uint32_t plans;    /* in a row that the head of a queue did not fit */
		uint64_t since_ns, plan; /* the first and the last time */
	} refused[SCHED_KINDS];
	uint64_t        planned_rows, forced_tokens; /* of all plans; computed ones that were lost to others who waited */
	struct estimate estimate;

	struct sched_cost       cost;
	struct sched_item      *items;   /* [max_running], of the last plan */
	uint32_t               *evicted; /* [capacity] */
	uint32_t               *expired; /* [capacity] */
	struct sched_candidate *candidates[SCHED_KINDS]; /* [max_running] heaps, while planning */
	struct sched_stats      stats;
};

enum { SCHED_CHARGE = 16 }; /* an answer is charged by so many tokens: heaps move each time */

/* ---- sched.c */
void sched_run_append(struct sched *sched, uint32_t handle);
void sched_run_remove(struct sched *sched, uint32_t handle);
enum sched_kind sched_kind_of(const struct sched *sched, uint32_t pending);
uint32_t sched_blocks_for(const struct sched *sched, uint64_t tokens);

/* ---- sched_queue.c: order of those who wait */
enum status sched_queue_init(struct sched *sched);
void        sched_queue_free(struct sched *sched);
/* Finds or makes the flow that pays for HANDLE, and pins it until sched_queue_leave. */
void sched_queue_join(struct sched *sched, uint32_t handle, uint64_t key);
void sched_queue_leave(struct sched *sched, uint32_t handle);
/* Puts HANDLE among those who wait, in its flow, or if resumed in the one before all others of its class.  Takes it out. */
void sched_queue_push(struct sched *sched, uint32_t handle);
void sched_queue_take(struct sched *sched, uint32_t handle);
/* Who is next; SCHED_NONE when nobody waits. */
uint32_t sched_queue_head(const struct sched *sched, enum sched_kind kind);
/* The key of HANDLE pays TOKENS, more or (negative) less than it has. */
void sched_queue_charge(struct sched *sched, uint32_t handle, int64_t tokens);
/* Tokens by which the key of A has been served less than that of B; 0 when not, or when they are of different classes. */
uint64_t sched_queue_owed(const struct sched *sched, uint32_t a, uint32_t b);
void sched_queue_admitted(struct sched *sched, uint32_t handle);
void sched_expiry_add(struct sched *sched, uint32_t handle);
void sched_expiry_remove(struct sched *sched, uint32_t handle);

/* ---- sched_cost.c */
void     sched_cost_init(struct sched_cost *cost);
void     sched_cost_add(struct sched_cost *cost, uint32_t rows, uint32_t sequences, uint64_t step_ns);
/* Prompt rows that fit beside DECODES decodes into TARGET_NS; UINT32_MAX while nothing is known. */
uint32_t sched_cost_rows(const struct sched_cost *cost, uint32_t decodes, uint64_t target_ns);
/* Rows, at most MOST, that take one part in PART of what DECODES decodes take without them. */
uint32_t sched_cost_beside(const struct sched_cost *cost, uint32_t decodes, uint32_t part, uint32_t most);
/* What one token of work is worth in waiting time. */
uint64_t sched_cost_token_ns(const struct sched_cost *cost);
/* At least this long for ROWS rows; 0 while nothing is known. */
uint64_t sched_cost_least_ns(const struct sched_cost *cost, uint32_t rows);

#endif
