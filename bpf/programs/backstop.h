/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The backstop: of what the host forwards, or takes, it drops what a pod of this node
 * sends or gets past from_pod and to_pod, as far as a policy could concern it. So it
 * needs no agent to be running. And it judges where services have led, also to this host
 * itself: from_pod has seen their addresses only. Nothing but a node gets to the overlay. */

#pragma once

#include "conntrack.h"
#include "forward.h"
#include "netfilter.h"
#include "policy.h"

/* Reports whether an address may be that of a pod of this node. */
static __always_inline bool may_be_local_pod(const struct tuple *t, __u32 slot)
{
	struct prefix_key key;
	const struct ipcache_value *known;

	prefix_of(&key, t, &t->saddr);
	known = in_slot(sluice_ipcache, slot, &key);
	return known && known->flags & IPCACHE_IN_CLUSTER && !(known->flags & (IPCACHE_HOST | IPCACHE_NODE)) &&
	       no_address(&known->tunnel);
}

/* Reports what became of a packet; of a drop it is counted too. what is a WHAT. */
static __noinline void report_backstop(struct bpf_nf_ctx *ctx, const struct packet *p, const struct decision *d,
				       __u32 what)
{
	__u32 reason = what & 0xff, direction = what >> 16 & 1;
	struct event *e;

	if (reason)
		count(reason, direction, ctx->skb->len);
	e = bpf_ringbuf_reserve(&sluice_events, sizeof(*e), 0);
	if (!e) {
		count(REASON_EVENT_LOST, direction, 0);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->kind = reason ? EVENT_DROP : EVENT_FLOW;
	e->reason = reason;
	e->program = PROGRAM_BACKSTOP;
	e->direction = direction;
	e->family = p->flow.family;
	e->protocol = p->flow.protocol;
	e->tcp_flags = p->tcp_flags;
	e->icmp_type = p->icmp_type;
	e->saddr = p->flow.saddr;
	e->daddr = p->flow.daddr;
	e->sport = p->flow.sport;
	e->dport = p->flow.dport;
	e->length = ctx->skb->len;
	e->cookie = d->cookie;
	e->slot = d->slot;
	bpf_ringbuf_submit(e, 0);
}

/* Judges a packet of a pod by where the host's translation has led: the flow from the pod
 * to there has an entry of its own. Returns 0, or why it is dropped. */
static __noinline int judge_backend(struct bpf_nf_ctx *ctx, struct packet *p, struct decision *d)
{
	const __u32 how = TUPLE_OUT | TUPLE_SERVICE;
	const struct config_value *cfg = config();
	__u32 length = ctx->skb->len, reason;
	const struct pod_value *pod;
	struct ct_entry *e;

	if (!cfg)
		return 0;
	if (!read_packet(ctx, p, true))
		return REASON_MALFORMED;
	pod = local_pod(&p->flow.saddr, d->slot);
	/* What is not known was held when it began. */
	if (!pod || !pod->subject || same_address(&p->flow.saddr, &p->flow.daddr) ||
	    !is_subject(pod, d))
		return 0;
	/* An error has passed from_pod because of the flow that it is about. */
	if (is_icmp(p->flow.protocol) && !p->unknown_fragment && icmp_error(p->flow.family, p->icmp_type))
		return 0;
	judge_for(d, pod);
	p->time = bpf_ktime_get_ns(); /* here there is no coarse clock */
	e = p->unknown_fragment ? NULL : ct_find_original(p, how);
	if (e && stands(e, d) && !no_ports(p)) {
		d->cookie = e->cookie;
		reason = 0;
	} else {
		reason = judge_peer(p, pod, d, DIRECTION_EGRESS, NULL);
	}
	count_rule(d->cookie, length);
	if (reason)
		return reason;
	if (e && e->generation != d->generation) {
		e->generation = d->generation;
		e->cookie = d->cookie;
	}
	if (p->unknown_fragment || (e && ct_note(length, e, p, cfg, true)))
		return 0;
	/* from_pod has refused what would begin a connection. What does not goes on without an entry,
	 * and is judged packet by packet. */
	if (connections_used_up(p, cfg, how, 0))
		return 0;
	ct_create(length, p, d, cfg, how);
	if (!e && cfg->flags & CONFIG_FLOW_EVENTS)
		report_backstop(ctx, p, d, WHAT(REASON_PASSED, PROGRAM_BACKSTOP, DIRECTION_EGRESS));
	return 0;
}

/* Reports whether the host's connection tracking knows the packet's connection from
 * another packet, and has it in this state, or in one above. */
static __always_inline bool host_tracks(struct bpf_nf_ctx *ctx, __u32 state)
{
	unsigned long connection;

	if (!bpf_core_field_exists(ctx->skb->_nfct))
		return false;
	connection = ctx->skb->_nfct;
	return connection & ~NFCT_INFO && (connection & NFCT_INFO) != NFCT_NEW && (connection & NFCT_INFO) >= state;
}

/* Reports whether the host has led a packet elsewhere than it was sent to, as far as that
 * can be known. */
static __always_inline bool translated(unsigned long connection)
{
	unsigned long status = 0;

	if (!reads_kernel || !bpf_core_field_exists(((struct nf_conn *)0)->status) ||
	    bpf_core_read(&status, sizeof(status), &((struct nf_conn *)(connection & ~NFCT_INFO))->status))
		return false;
	return status & CONNTRACK_TRANSLATED;
}

/* Returns the connection that a packet begins for the host's connection tracking, 0 if it does
 * not, as far as that can be known. */
static __always_inline unsigned long begun_connection(struct bpf_nf_ctx *ctx)
{
	unsigned long connection;

	if (!bpf_core_field_exists(ctx->skb->_nfct))
		return 0;
	connection = ctx->skb->_nfct;
	return connection & ~NFCT_INFO && (connection & NFCT_INFO) == NFCT_NEW ? connection : 0;
}

/* Reports whether a packet that no node has sent to the overlay is led there: one of a pod,
 * by a service, or one that this node would give its own address as source. The overlay
 * answers nothing, so its packets are new to the host's connection tracking for ever. What
 * that does not track is not translated. */
static __noinline int led_to_overlay(struct bpf_nf_ctx *ctx, struct packet *p, const struct config_value *cfg,
				     __u32 mark)
{
	bool here = ctx->state->hook == NF_INET_LOCAL_IN, foreign;
	unsigned long connection = 0;

	if (bpf_core_field_exists(ctx->skb->_nfct))
		connection = ctx->skb->_nfct;
	if (!(connection & ~NFCT_INFO) || (connection & NFCT_INFO) != NFCT_NEW)
		return false;
	foreign = mark || translated(connection);
	if (here && !foreign)
		return false;
	if (!read_packet(ctx, p, true) || p->flow.protocol != IPPROTO_UDP || p->unknown_fragment ||
	    p->flow.dport != bpf_htons(cfg->overlay_port))
		return false;
	if (here)
		return true;
	return bpf_map_lookup_elem(&sluice_nodes, &p->flow.daddr) &&
	       (foreign || !bpf_map_lookup_elem(&sluice_nodes, &p->flow.saddr));
}

/* Reports whether from_pod has seen a packet, and to_pod of a pod of this node will see it,
 * or no pod of this node gets it. Of a connection that the host knows, an address may have
 * come to be another pod's: but no pod is behind a device that is not virtual. */
static __always_inline bool seen(struct bpf_nf_ctx *ctx, __u32 mark)
{
	const struct nf_hook_state *state = ctx->state;

	if (!mark)
		return false;
	return state->hook == NF_INET_LOCAL_IN || (host_tracks(ctx, 0) && !state->out->rtnl_link_ops);
}

/* Reports whether it is neighbour discovery, which is not judged. */
static __noinline int discovers_neighbours(struct bpf_nf_ctx *ctx, const struct packet *p)
{
	struct bpf_dynptr data;
	__u8 hops, type;

	if (p->flow.protocol != IPPROTO_ICMPV6 || bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &data) ||
	    bpf_dynptr_read(&hops, sizeof(hops), &data, offsetof(struct ipv6hdr, hop_limit), 0) ||
	    bpf_dynptr_read(&type, sizeof(type), &data, sizeof(struct ipv6hdr), 0))
		return false;
	return hops == 255 && type >= ICMP6_NEIGHBOUR_DISCOVERY_FIRST && type <= ICMP6_NEIGHBOUR_DISCOVERY_LAST;
}

/* Returns, as a WHAT, why a packet is held for network policies: what has no mark
 * from_pod has not seen, and what goes to an address of a pod without device to_pod will
 * not see. Returns 0 if it is not held. */
static __noinline __u32 hold(struct bpf_nf_ctx *ctx, const struct packet *p,
			     const struct config_value *cfg, __u32 mark, __u32 slot)
{
	bool here = ctx->state->hook == NF_INET_LOCAL_IN;
	const struct pod_value *pod;

	if (to_many(&p->flow) || discovers_neighbours(ctx, p))
		return 0;
	if (!mark) {
		pod = local_pod(&p->flow.saddr, slot);
		/* The host reaches its pods, so they answer it. */
		if (pod || of_local_pods(&p->flow, &p->flow.saddr, slot))
			return here && cfg->flags & CONFIG_ALLOW_LOCALHOST && host_tracks(ctx, NFCT_REPLY) ? 0 :
			       WHAT(pod && pod->ifindex ? REASON_NOT_CHECKED : REASON_POD_NOT_READY, PROGRAM_BACKSTOP,
				    DIRECTION_EGRESS);
	}
	if (here)
		return 0;
	pod = local_pod(&p->flow.daddr, slot);
	if (pod ? pod->ifindex : !of_local_pods(&p->flow, &p->flow.daddr, slot))
		return 0;
	return WHAT(REASON_POD_NOT_READY, PROGRAM_BACKSTOP, DIRECTION_INGRESS);
}

/* Drops a packet, and reports it with its ports, as far as it has any. */
static __noinline int drop_held(struct bpf_nf_ctx *ctx, struct packet *p, const struct decision *d, __u32 what)
{
	read_packet(ctx, p, true);
	report_backstop(ctx, p, d, what);
	return NF_DROP;
}

SEC("netfilter")
int backstop(struct bpf_nf_ctx *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct route_value *route;
	const struct pod_value *pod;
	unsigned long begun;
	__u32 mark, reason;
	bool led;

	look_at_state(&d);
	if (!cfg)
		return NF_ACCEPT;
	mark = get_mark(ctx->skb->mark, cfg);
	if (led_to_overlay(ctx, &p, cfg, mark)) {
		report_backstop(ctx, &p, &d, WHAT(REASON_OVERLAY_PORT, PROGRAM_BACKSTOP, DIRECTION_EGRESS));
		return NF_DROP;
	}
	/* from_pod may not have known that the host would translate it. */
	begun = mark == MARK_CHECKED ? begun_connection(ctx) : 0;
	led = mark == MARK_SERVICE || (begun && translated(begun));
	if (led) {
		reason = judge_backend(ctx, &p, &d);
		if (reason) {
			report_backstop(ctx, &p, &d, WHAT(reason, PROGRAM_BACKSTOP, DIRECTION_EGRESS));
			return NF_DROP;
		}
	}
	if (!(cfg->flags & CONFIG_BACKSTOP))
		return NF_ACCEPT;
	if (cfg->flags & CONFIG_NETWORK_POLICIES && !seen(ctx, mark) && read_packet(ctx, &p, false)) {
		reason = hold(ctx, &p, cfg, mark, d.slot);
		if (reason)
			return drop_held(ctx, &p, &d, reason);
	}
	if (ctx->state->hook == NF_INET_LOCAL_IN)
		return NF_ACCEPT;
	/* What from_pod takes for a reply the host may have forgotten: it would leave with the host's
	 * address. */
	if ((mark && !led && !begun) || !read_packet(ctx, &p, false) || !covered(&p.flow) ||
	    destination_flags(&p.flow, d.slot))
		return NF_ACCEPT;
	pod = local_pod(&p.flow.saddr, d.slot);
	if (!pod && !may_be_local_pod(&p.flow, d.slot))
		return NF_ACCEPT;
	/* A packet to a backend is judged as if the pod had sent it there itself. */
	if (mark && pod && pod->subject) {
		route = route_of(pod, d.slot);
		if (!route)
			return NF_ACCEPT;
		d.egress_ruleset = route->egress_ruleset;
		find_gateway(&p.flow, &d);
		if (!d.group)
			return NF_ACCEPT;
	}
	reason = led ? REASON_SERVICE_OUTSIDE : mark ? REASON_PREDATES_POLICY : REASON_NOT_CHECKED;
	report_backstop(ctx, &p, &d, WHAT(reason, PROGRAM_BACKSTOP, DIRECTION_EGRESS));
	return NF_DROP;
}
