//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* A gateway that does nothing but refresh and make connections and their
 * translations, with the datapath's own code, while the garbage collection removes
 * those that have expired. It knows what it was promised, and looks whether that is
 * kept.
 *
 * Time stands still for both sides. For a single flow it passes at a stroke: its
 * entries are made old, as the collection sees it, which may remove them from
 * there on. The next step of the flow comes a random number of steps later, so that
 * the two meet all the time. */

#include "../../../programs/kernel.h"

/* All in one, for a timer has no packet that a function could be given. */
#undef SUBPROGRAM
#define SUBPROGRAM static __always_inline

/* The clock of the test. Of two looks at it within its second the later one sees
 * more, as a record of a translation is known by when it was made. */
#define bpf_ktime_get_ns() (setup.now * 1000000000ULL + ++ticks)

struct gateway_setup {
	__u64 now;      /* seconds: of the gateway; the collection's clock is CLOCK_AHEAD later */
	__u32 flows;    /* how many, a power of two up to FLOWS_MAX */
	__u32 steps;    /* of one run of step_flows */
	__u32 period;   /* nanoseconds between runs by the timer; 0: it ends */
	__u16 family;   /* of the flows */
	__u16 protocol;
	__u32 flags;
};

enum gateway_flags {
	GATEWAY_TRANSLATES = 1 << 0,
	GATEWAY_EVICTS = 1 << 1, /* entries go without the collection too, as the least recently used ones do */
	GATEWAY_NOTES = 1 << 2,  /* makes no connections, only refreshes those that there are */
};

struct gateway_setup setup;
__u64 ticks; /* nanoseconds: looks at the clock, which are fewer than a second has */

#include "../../../programs/nat.h"

#define FLOWS_MAX 8192
#define LIFETIME 60    /* seconds that a refresh prolongs connections by */
#define CLOCK_AHEAD 2  /* seconds; what was used at setup.now is used within NAT_GRACE for it */
#define EXPIRED_HERE 5 /* seconds ago, in the view of both */
#define UNUSED 10      /* seconds */
#define AGES (1 << 20) /* seconds more that either may be ago */
#define PROBES 4

struct gateway_counts {
	__u64 refreshed; /* connections whose entry was prolonged */
	__u64 renewed;	 /* whose entry was made, or made anew */
	__u64 failed;	 /* neither: another program was about to delete the entry */
	__u64 used;	 /* translations that were found, and said to be in use */
	__u64 recorded;	 /* that were made */
	__u64 unrecorded;
	__u64 lost;		 /* connections that were promised to live, and are gone */
	__u64 lost_translations; /* the same */
	__u64 checked;
	__u64 evicted;
};

/* What the gateway was promised of a flow. */
struct gateway_flow {
	__u32 lifetime; /* its connection lives until then; 0: nothing */
	__u16 translated;
	__be16 port;
	__u64 packets; /* noted in the entry since it was made, as far as the gateway knows */
};

struct gateway_counts counted;
struct gateway_flow flows[FLOWS_MAX];

/* What a packet's code works on. One run is at it at a time. */
struct packet at;
struct decision decided;
struct config_value configured;
struct translation to, owner;
struct tuple answers;
struct address own;

static __always_inline void packet_of(__u32 k)
{
	__builtin_memset(&at, 0, sizeof(at));
	at.shape = SHAPE_WHOLE;
	at.time = setup.now * SECOND;
	at.tcp_flags = TCP_ACK;
	at.flow.family = setup.family;
	at.flow.protocol = setup.protocol;
	at.flow.sport = bpf_htons(1024 + k);
	at.flow.dport = bpf_htons(443);
	if (setup.family == FAMILY_IPV4) {
		at.flow.saddr = mapped(bpf_htonl(0x0a000001 + (k & 0xff)));
		at.flow.daddr = mapped(bpf_htonl(0xc0000201));
		own = mapped(bpf_htonl(0xc6336401));
	} else {
		at.flow.saddr.words[0] = at.flow.daddr.words[0] = own.words[0] = bpf_htonl(0x20010db8);
		at.flow.saddr.words[3] = bpf_htonl(1 + (k & 0xff));
		at.flow.daddr.words[1] = bpf_htonl(1);
		at.flow.daddr.words[3] = bpf_htonl(1);
		own.words[1] = bpf_htonl(2);
		own.words[2] = 0;
		own.words[3] = bpf_htonl(1);
	}
	configured.lifetime_tcp = configured.lifetime_any = configured.lifetime_syn = LIFETIME;
}

#define LENGTH 100 /* of each packet */

/* The records of a flow with a port, which no other flow may have. */
static __always_inline bool record(__be16 port)
{
	struct address none = {};

	replies_to(&answers, &at.flow, &own, port);
	if (!port_free(&answers, &at.flow, at.time) ||
	    nat_record(&answers, TUPLE_IN | NAT_NEW, &at.flow.saddr, at.flow.sport, &none))
		return false;
	if (!nat_record(&at.flow, TUPLE_OUT | NAT_NEW, &own, port, &none))
		return true;
	nat_remove(&answers, TUPLE_IN, NAT_NOW);
	return false;
}

/* As translate of nat.h, without what does not touch the records. */
static __always_inline void translated(struct gateway_flow *f)
{
	struct address none = {};

	if (nat_find(&at.flow, TUPLE_OUT, &to, at.time)) {
		/* At times the record is stale (nat_prepare): a connection begins with the same ports. */
		if (bpf_get_prandom_u32() & 3 && nat_complete(&at.flow, &to, &none, at.time)) {
			f->translated = 1;
			f->port = to.port;
			counted.used++;
			return;
		}
		nat_forget(&at.flow, &to);
	}
	for (int i = 0; i < PROBES; i++) {
		/* As nat_allocate: the flow's own port first, which may be that of its record before. */
		__be16 port = i ? bpf_htons(1024 + bpf_get_prandom_u32() % 60000) : at.flow.sport;

		if (record(port)) {
			f->translated = 1;
			f->port = port;
			counted.recorded++;
			return;
		}
	}
	counted.unrecorded++;
}

/* As track_translated of track.h. */
static __always_inline void tracked_flow(struct gateway_flow *f)
{
	struct ct_entry *e = ct_find_original(&at, TUPLE_OUT);

	if (e && ct_note(LENGTH, e, &at, &configured, true)) {
		f->packets++;
		f->lifetime = setup.now + LIFETIME - 1; /* or one more */
		counted.refreshed++;
		return;
	}
	if (setup.flags & GATEWAY_NOTES)
		return;
	if (!ct_create(LENGTH, &at, &decided, &configured, TUPLE_OUT)) {
		counted.failed++;
		return;
	}
	f->packets = 1;
	f->lifetime = setup.now + LIFETIME - 1;
	counted.renewed++;
}

/* Looks whether what was promised of the connection is so. */
static __always_inline struct ct_entry *kept(struct gateway_flow *f)
{
	struct ct_entry *e = ct_lookup(&at.flow, TUPLE_OUT);

	counted.checked++;
	if (e && ct_lifetime_of(e) >= f->lifetime)
		return e;
	counted.lost++;
	return NULL;
}

static __always_inline bool translation_kept(struct gateway_flow *f)
{
	replies_to(&answers, &at.flow, &own, f->port);
	if (nat_find(&at.flow, TUPLE_OUT, &to, 0) && to.port == f->port && nat_find(&answers, TUPLE_IN, &owner, 0) &&
	    is_owner(&owner, &at.flow))
		return true;
	counted.lost_translations++;
	return false;
}

/* How much longer ago than need be the flow was used. No two have the same age: if the
 * kernel gives an entry's memory to another flow, that one was used later in fact,
 * however much the collection was interrupted. */
static __always_inline __u32 next_age(void)
{
	static __u32 ages;

	return ages++ & (AGES - 1);
}

static __always_inline void age_record(const struct tuple *t, __u8 flags)
{
	__u32 *used = NULL;

	if (setup.family == FAMILY_IPV4) {
		struct nat4_entry *e = nat4_lookup(t, flags);

		used = e ? &e->used : NULL;
	} else {
		struct nat6_entry *e = nat6_lookup(t, flags);

		used = e ? &e->used : NULL;
	}
	if (!used || __sync_val_compare_and_swap(used, setup.now, setup.now - UNUSED - next_age()) != setup.now)
		counted.lost_translations++;
}

/* The flow is silent until it has expired, for the collection or for both. */
static __always_inline void age(struct gateway_flow *f, __u32 random)
{
	struct ct_entry *e;
	__u32 lifetime;

	/* At times the connection expires just after the translation was used. */
	if (f->translated && translation_kept(f) && random & 0x70000) {
		age_record(&at.flow, TUPLE_OUT);
		age_record(&answers, TUPLE_IN);
	}
	f->translated = 0;
	e = f->lifetime ? kept(f) : NULL;
	if (e) {
		lifetime = ct_lifetime_of(e);
		if (__sync_val_compare_and_swap(&e->lifetime, lifetime,
						random & 0x80000 ? setup.now + 1 : setup.now - EXPIRED_HERE - next_age()) != lifetime)
			counted.lost++;
	}
	f->lifetime = 0;
}

static __always_inline void evict(void)
{
	struct tuple4_key key4 ALIGNED;
	struct tuple6_key key6 ALIGNED;
	long err;

	if (setup.family == FAMILY_IPV4) {
		ct4_key(&key4, &at.flow, TUPLE_OUT);
		err = setup.protocol == IPPROTO_TCP ? bpf_map_delete_elem(&sluice_ct4_tcp, &key4)
						    : bpf_map_delete_elem(&sluice_ct4_any, &key4);
	} else {
		ct6_key(&key6, &at.flow, TUPLE_OUT);
		err = setup.protocol == IPPROTO_TCP ? bpf_map_delete_elem(&sluice_ct6_tcp, &key6)
						    : bpf_map_delete_elem(&sluice_ct6_any, &key6);
	}
	counted.evicted += !err;
}

static struct gateway_flow *flow_at(__u32 k)
{
	return &flows[k & (FLOWS_MAX - 1)];
}

static long step(__u32 i, void *unused)
{
	__u32 random = bpf_get_prandom_u32();
	__u32 k = random & (setup.flows - 1);
	struct gateway_flow *f = flow_at(k);

	(void)i;
	(void)unused;
	packet_of(k);
	if (f->lifetime || f->translated) {
		age(f, random);
		return 0;
	}
	if (setup.flags & GATEWAY_EVICTS && random & 0x100000)
		evict();
	if (setup.flags & GATEWAY_TRANSLATES)
		translated(f);
	tracked_flow(f);
	return 0;
}

static long check(__u32 k, void *unused)
{
	struct gateway_flow *f = flow_at(k);

	(void)unused;
	packet_of(k);
	if (f->lifetime)
		kept(f);
	if (f->translated)
		translation_kept(f);
	return 0;
}

/* Makes setup.steps steps. */
SEC("tcx/ingress") int step_flows(struct __sk_buff *ctx)
{
	(void)ctx;
	bpf_loop(setup.steps, step, NULL, 0);
	return 0;
}

/* Looks at all flows, when no other program is at it. */
SEC("tcx/ingress") int check_flows(struct __sk_buff *ctx)
{
	(void)ctx;
	bpf_loop(setup.flows, check, NULL, 0);
	return 0;
}

struct pulse {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pulse);
} pulses SEC(".maps");

#define ON_THIS_CPU 2 /* BPF_F_TIMER_CPU_PIN of linux/bpf.h of 6.7 */

__u64 pulsed; /* runs by the timer */
__u32 stopped;

/* The datapath's packets come as interrupts of what the CPU is at: so does this. */
static int pulse(void *map, __u32 *key, struct pulse *p)
{
	(void)map;
	(void)key;
	if (!setup.period) {
		stopped = 1;
		return 0;
	}
	pulsed++;
	bpf_loop(setup.steps, step, NULL, 0);
	bpf_timer_start(&p->timer, setup.period, ON_THIS_CPU);
	return 0;
}

/* Makes steps again and again, on the CPU that it runs on, until setup.period is 0. */
SEC("tcx/ingress") int start_pulse(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	struct pulse *p = bpf_map_lookup_elem(&pulses, &zero);
	int err;

	(void)ctx;
	if (!p)
		return 1;
	err = bpf_timer_init(&p->timer, &pulses, 1 /* CLOCK_MONOTONIC */);
	if (err && err != -EBUSY)
		return -err;
	stopped = 0;
	err = bpf_timer_set_callback(&p->timer, pulse);
	return -(err ?: bpf_timer_start(&p->timer, setup.period, ON_THIS_CPU));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
