/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What becomes of packets, for those who look: counters and events. */

#pragma once

#include "parse.h"

/* What was decided of a flow, as far as it got. */
struct decision {
	__u32 egress_ruleset;
	__u32 group;
	struct address gateway; /* where the flow is pinned to */
	struct address egress;	/* what it leaves this node with */
	__be16 egress_port;
	__u16 flags; /* of its connection: enum ct_flags */
	__u32 generation; /* under which its connection is judged: see judge_for */
	union { /* it is decided where it goes before it leaves */
		__u32 destination; /* what is known of it, a row's flags, once leads is set */
		__u32 exit;	   /* device by which it leaves this node */
	};
	union { /* policies are asked before it is sent */
		__u32 ruleset; /* of the pod, 0 until it was looked up */
		__u32 mtu;     /* that the packet exceeds */
	};
	__u8 of_host : 1; /* it is not a pod's, but the host's own */
	__u8 live : 1;	  /* its connection is tracked */
	__u8 renewed : 1; /* it had a port, which it has just given up */
	__u8 of_block : 1; /* its egress address moves: this node translates it, whatever the gateway */
	__u8 slot : 1;    /* that was in force when the packet came: all is looked up there */
	__u8 leads;    /* where the destination leads: enum leads */
	__u16 counter; /* of its translation's traffic */
	__u32 cookie;  /* of the rules of network policies that decided */
	__u32 policy;  /* egress policy that decided, if any was asked: an egress_value's */
	__u32 began;   /* when its translation did, seconds: now, of one that is new */
};

static __always_inline void count(__u32 reason, __u32 direction, __u64 bytes)
{
	__u32 index = reason * DIRECTIONS + direction;
	struct metric *m = bpf_map_lookup_elem(&sluice_metrics, &index);

	if (m) {
		m->packets++;
		m->bytes += bytes;
	}
}

/* Counts for rules whose slot is another's. */
static __noinline void count_crowded(__u32 cookie, __u64 bytes)
{
	struct rule_key key = {.cookie = cookie};
	struct metric first = {.packets = 1, .bytes = bytes};
	struct metric *m = bpf_map_lookup_elem(&sluice_rules, &key);

	if (!m) {
		/* Another CPU may have made it meanwhile: this one's part is still empty. */
		bpf_map_update_elem(&sluice_rules, &key, &first, BPF_ANY);
		return;
	}
	m->packets++;
	m->bytes += bytes;
}

/* Takes a free slot. Returns whether it is the cookie's now. */
static __noinline int take_slot(__u32 *slot, __u32 cookie)
{
	__u32 owner;

	if (*slot)
		return false;
	owner = __sync_val_compare_and_swap(slot, 0, cookie);
	return !owner || owner == cookie;
}

static __noinline void count_decided(__u32 cookie, __u64 bytes)
{
	__u32 index = cookie % RULE_SLOTS;
	struct metric *m;
	__u32 *slot;

	slot = bpf_map_lookup_elem(&sluice_ruleslot, &index);
	m = bpf_map_lookup_elem(&sluice_rulehits, &index);
	if (!slot || !m)
		return;
	if (*slot != cookie && !take_slot(slot, cookie)) {
		count_crowded(cookie, bytes);
		return;
	}
	m->packets++;
	m->bytes += bytes;
}

/* Counts a packet for the rules that decided on its flow. */
static __always_inline void count_rule(__u32 cookie, __u64 bytes)
{
	if (cookie)
		count_decided(cookie, bytes);
}

/* Reason, program and direction in one argument. */
#define WHAT(reason, program, direction) ((__u32)(reason) | (__u32)(program) << 8 | (__u32)(direction) << 16)

SUBPROGRAM int report(struct __sk_buff *ctx, const struct packet *p, const struct decision *d, __u32 kind, __u32 what)
{
	struct event *e;

	if (!p || !d)
		return 0;
	e = bpf_ringbuf_reserve(&sluice_events, sizeof(*e), 0);
	if (!e) {
		count(REASON_EVENT_LOST, (what >> 16) & 1, 0);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->kind = kind;
	e->reason = what;
	e->program = what >> 8;
	e->direction = what >> 16;
	e->family = p->flow.family;
	e->protocol = p->header_protocol;
	e->tcp_flags = p->tcp_flags;
	e->icmp_type = p->icmp_type;
	e->saddr = p->flow.saddr;
	e->daddr = p->flow.daddr;
	e->sport = p->flow.sport;
	e->dport = p->flow.dport;
	e->length = ctx->len;
	e->ifindex = ctx->ifindex;
	e->egress_ruleset = d->egress_ruleset;
	e->group = d->group;
	e->cookie = d->cookie;
	e->gateway = d->gateway;
	e->egress = d->egress;
	e->egress_port = d->egress_port;
	e->slot = d->slot;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline int drop(struct __sk_buff *ctx, const struct packet *p, const struct decision *d, __u32 reason,
				__u32 program, __u32 direction)
{
	count(reason, direction, ctx->len);
	report(ctx, p, d, EVENT_DROP, WHAT(reason, program, direction));
	return TCX_DROP;
}

/* Reports a new flow, if a client follows flows. what is a WHAT. */
static __always_inline void report_flow(struct __sk_buff *ctx, const struct packet *p, const struct decision *d,
					const struct config_value *cfg, __u32 what)
{
	if (cfg->flags & CONFIG_FLOW_EVENTS)
		report(ctx, p, d, EVENT_FLOW, what);
}
