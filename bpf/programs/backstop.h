/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The backstop: of what the host forwards, it drops what comes from a pod of this
 * node that no program has checked yet, and goes where an egress policy may want
 * it to have another source. So it needs no agent to be running. */

#pragma once

#include "forward.h"

struct sk_buff {
	__u32 mark;
	__u32 len;
} __attribute__((preserve_access_index));

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 pf;
	struct net_device *in;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 buffer__szk) __ksym;

#define NFPROTO_IPV4 2
#define NFPROTO_IPV6 10

/* Reads the addresses of a packet whose data begins with the IP header. */
static __always_inline bool addresses_of(struct bpf_nf_ctx *ctx, struct packet *p)
{
	struct bpf_dynptr data;
	__u8 buffer[sizeof(struct ipv6hdr)] = {};

	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &data))
		return false;
	if (ctx->state->pf == NFPROTO_IPV4) {
		const struct iphdr *ip = bpf_dynptr_slice(&data, 0, buffer, sizeof(*ip));

		if (!ip)
			return false;
		p->flow.family = FAMILY_IPV4;
		p->flow.saddr = mapped(ip->saddr);
		p->flow.daddr = mapped(ip->daddr);
		p->flow.protocol = ip->protocol;
	} else {
		const struct ipv6hdr *ip = bpf_dynptr_slice(&data, 0, buffer, sizeof(*ip));

		if (!ip)
			return false;
		p->flow.family = FAMILY_IPV6;
		__builtin_memcpy(&p->flow.saddr, &ip->saddr, 16);
		__builtin_memcpy(&p->flow.daddr, &ip->daddr, 16);
		p->flow.protocol = ip->nexthdr;
	}
	return true;
}

/* Reports whether an address may be that of a pod of this node. */
static __always_inline bool may_be_local_pod(const struct tuple *t)
{
	struct prefix_key key;
	const struct ipcache_value *known;

	prefix_of(&key, t, &t->saddr);
	known = bpf_map_lookup_elem(&sluice_ipcache, &key);
	return known && known->flags & IPCACHE_IN_CLUSTER && !(known->flags & (IPCACHE_HOST | IPCACHE_NODE)) &&
	       no_address(&known->tunnel);
}

static __noinline void report_backstop(struct bpf_nf_ctx *ctx, const struct packet *p, __u32 reason)
{
	struct event *e;

	count(reason, DIRECTION_EGRESS, ctx->skb->len);
	e = bpf_ringbuf_reserve(&sluice_events, sizeof(*e), 0);
	if (!e) {
		count(REASON_EVENT_LOST, DIRECTION_EGRESS, 0);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->kind = EVENT_DROP;
	e->reason = reason;
	e->program = PROGRAM_BACKSTOP;
	e->family = p->flow.family;
	e->protocol = p->flow.protocol;
	e->saddr = p->flow.saddr;
	e->daddr = p->flow.daddr;
	e->length = ctx->skb->len;
	bpf_ringbuf_submit(e, 0);
}

SEC("netfilter")
int backstop(struct bpf_nf_ctx *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct source_value *source;
	__u32 mark;

	if (!cfg || !(cfg->flags & CONFIG_BACKSTOP))
		return NF_ACCEPT;
	mark = get_mark(ctx->skb->mark, cfg);
	if ((mark && mark != MARK_SERVICE) || !addresses_of(ctx, &p) || !covered(&p.flow) || destination_flags(&p.flow))
		return NF_ACCEPT;
	if (!bpf_map_lookup_elem(&sluice_pods, &p.flow.saddr) && !may_be_local_pod(&p.flow))
		return NF_ACCEPT;
	source = mark ? bpf_map_lookup_elem(&sluice_sources, &p.flow.saddr) : NULL;
	if (source) { /* what a service led to is asked as if the pod had sent it there */
		d.egress_class = source->egress_class;
		find_gateway(&p.flow, &d);
		if (!d.group)
			return NF_ACCEPT;
	}
	report_backstop(ctx, &p, mark ? REASON_SERVICE_OUTSIDE : REASON_NOT_CHECKED);
	return NF_DROP;
}
