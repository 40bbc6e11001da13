//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What a test run of a program does not show by itself: where it redirects
 * packets to and with which tunnel key. The package puts instructions into the
 * programs that write it down; tracing would do without that, but is not permitted
 * everywhere. And a way to give a packet a tunnel key. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../../../programs/event.h"

#define TCX_NEXT -1

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Offsets are known to the package. */
struct observation {
	__u32 redirect_kind;
	__u32 key_set;
	__u64 redirect_ifindex;
	__u64 redirect_flags;
	__u64 key_flags;
	struct bpf_tunnel_key key; /* with which the packet goes */
};

struct arrival {
	struct bpf_tunnel_key key; /* with which a packet comes */
	__u32 flags;
	__u64 departure; /* time at which its sender has it leave, 0 for none */
};

/* Keys and values of the maps in slots, whose types the maps themselves do not have. */
struct in_slots {
	struct pod_key pod_key;
	struct pod_value pod_value;
	struct prefix_key prefix_key;
	struct ipcache_value ipcache_value;
	struct covered_value covered_value;
	struct frontend_key frontend_key;
	struct frontend_value frontend_value;
	struct subject_key subject_key;
	struct subject_value subject_value;
	struct route_value route_value;
	struct peer_key peer_key;
	struct peer_value peer_value;
	struct egress_key egress_key;
	struct egress_value egress_value;
	struct gateway_key gateway_key;
	struct gateway_value gateway_value;
	struct exit_key exit_key;
	struct exit_value exit_value;
	struct policy_key policy_key;
	struct policy_value policy_value;
	struct verdict_key verdict_key;
	struct verdict_value verdict_value;
	struct node_key node_key;
	struct node_value node_value;
};

/* Has these types in the object. Nothing calls it. */
int types_in_slots(const struct in_slots *types)
{
	return !types;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct observation);
} observations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} inside SEC(".maps");

/* Runs a program on a packet as if it had come by a tunnel: a packet that is to
 * be sent by one has its key in the same place, with source and destination the
 * other way round. */
SEC("tcx/ingress")
int tunneled(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	struct arrival *a = bpf_map_lookup_elem(&arrivals, &zero);
	if (!a || bpf_skb_set_tunnel_key(ctx, &a->key, sizeof(a->key), a->flags))
		return 0;
	if (a->departure)
		bpf_skb_set_tstamp(ctx, a->departure, BPF_SKB_TSTAMP_DELIVERY_MONO);
	bpf_tail_call(ctx, &inside, 0);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} departures SEC(".maps");

/* Writes down until when the last packet waits that goes to a device's queue and is to wait. */
SEC("tcx/egress")
int departs(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&departures, &zero);

	if (last && ctx->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO)
		*last = ctx->tstamp;
	return TCX_NEXT;
}

/* Has the map in the programs' collection. */
SEC("tcx/ingress")
int keep(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	return ctx->len + (bpf_map_lookup_elem(&observations, &zero) != 0);
}

/* Has the type in this object, as nothing names it in that of the programs. */
__weak __noinline int event_length(struct event *e)
{
	return e ? e->length : 0;
}

/* What a test run costs by itself. */
SEC("tcx/ingress")
int empty(struct __sk_buff *ctx)
{
	return TCX_NEXT;
}
