/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At the host side of a pod's veth: what the pod sends, and what it gets. */

#pragma once

#include "block.h"
#include "known.h"
#include "link.h"

/* Reports whether a packet is for the overlay, which is between nodes. Their addresses are
 * those that they send to: the overlay takes nothing that is for another one. */
static __always_inline bool for_overlay(const struct packet *p, const struct config_value *cfg)
{
	return p->flow.dport == bpf_htons(cfg->overlay_port) && p->flow.protocol == IPPROTO_UDP &&
	       p->shape != SHAPE_ICMP_ERROR && bpf_map_lookup_elem(&sluice_nodes, &p->flow.daddr);
}

/* Reports whether a frame has a VLAN tag. The kernel would take further tags off, and what is in
 * them past this program; and it would leave this node with the tag, in a VLAN that the pod
 * names. */
static __always_inline bool is_tagged(const struct __sk_buff *ctx)
{
	return ctx->vlan_present || ctx->protocol == bpf_htons(ETH_P_8021Q) ||
	       ctx->protocol == bpf_htons(ETH_P_8021AD);
}

/* Reports whether a checksum is still to be written where it changes more than a checksum or
 * payload: an address, a port, a flag, or what nothing needs to be written into. */
static __always_inline bool changes_later(struct __sk_buff *ctx, const struct packet *p)
{
	__u32 at = written_later(ctx), own = checksum_of(p);

	if (p->header_protocol == IPPROTO_SCTP)
		own = p->l4 + SCTP_CHECKSUM;
	if (!at || at == own)
		return false;
	return p->shape == SHAPE_UNTOUCHED || p->shape == SHAPE_ICMP_ERROR || at < p->l4 + TCP_MIN;
}

/* Reports whether a pod may have the address that it sends from, whose device is not known. */
static __noinline int may_send_from(const struct packet *p, __u32 ifindex, __u32 slot)
{
	return may_have(&p->source, p->flow.family, pod_at(ifindex, slot), ifindex, slot);
}

/* Lets a local pod's packet go its ordinary way. */
static __always_inline int to_stack(struct __sk_buff *ctx, const struct decision *d, const struct config_value *cfg)
{
	count(REASON_PASSED, DIRECTION_EGRESS, ctx->len);
	set_mark(ctx, cfg, d->flags & CT_SERVICE ? MARK_SERVICE : MARK_CHECKED);
	return TCX_NEXT;
}

/* Sends a local pod's packet to the gateway that its flow is pinned to. Returns a
 * verdict, or a reason, negative, why it is dropped. */
static __always_inline int to_gateway(struct __sk_buff *ctx, struct packet *p, struct decision *d,
				      const struct config_value *cfg)
{
	const struct address none = {};
	bool is_here, moving;
	int err;

	if (cfg->flags & CONFIG_EGRESS_IPS) {
		err = enter_block(ctx, p, d, cfg);
		if (err)
			return err;
	}
	is_here = same_address(&d->gateway, &cfg->underlay);
	if (!is_here && !d->of_block) {
		err = fits(ctx, p, d, cfg->overlay_ifindex) ?: clamp(ctx, p, d);
		return err ?: to_node(ctx, p, cfg, &d->gateway, DIRECTION_EGRESS);
	}
	err = is_here ? hop(ctx, p) : 0;
	if (err)
		return err;
	/* A packet does not wait behind to_netdev with an address that may move away meanwhile. */
	moving = d->of_block && d->exit != cfg->overlay_ifindex;
	err = translate(ctx, p, d, cfg, &none) ?:
	      within_limit(ctx, cfg, d->counter, d->began, &p->flow.saddr,
			   DIRECTION_EGRESS | (moving ? LIMIT_NO_WAIT : 0));
	if (err)
		return err;
	count_traffic(d->counter, d->began, ctx->len, DIRECTION_EGRESS);
	return d->of_block ? to_block(ctx, p, d, cfg) : to_outside(ctx, d, cfg);
}

/* Decides on a packet of a flow that the pod begins. */
static __noinline __u32 judge_new(const struct packet *p, const struct pod_value *pod, struct decision *d)
{
	__u32 reason = allowed(p, pod, d, DIRECTION_EGRESS);

	if (reason || link_local(&p->flow))
		return reason;
	reason = decide_egress(&p->flow, pod, d);
	return reason == REASON_TO_GATEWAY ? translatable(p) : reason;
}

/* Returns the live entry of the other side's flow to which a packet of the pod is a reply.
 * It checks that the packet can be a reply only after the lookup: before it, all packets
 * of new flows would take longer. */
static __noinline struct ct_entry *find_reply_entry(const struct packet *p)
{
	struct ct_entry *e = ct_find(p, TUPLE_IN | CT_REVERSE);

	return e && !asks(p) && !opens(p) ? e : NULL;
}

/* Reports whether a pod's datagram, if it began a flow, would resume a flow of the other
 * side that policies have denied. That flow's entry is kept as long as the pod goes on
 * sending. */
SUBPROGRAM int resumes_denied_flow(const struct packet *p, const struct pod_value *pod, struct decision *d,
		       const struct config_value *cfg)
{
	struct ct_entry *e;
	__u32 cookie, reason, lifetime, now;

	if (!p || !pod || !d || !cfg || p->flow.protocol == IPPROTO_TCP)
		return false;
	e = ct_lookup(&p->flow, TUPLE_IN | CT_REVERSE);
	if (!e || !ct_lifetime_of(e) || ct_long_expired(e, p->time))
		return false;
	cookie = d->cookie;
	reason = allowed_reply(p, pod, e, d, DIRECTION_INGRESS | host_reaches(cfg, e->flags));
	d->cookie = cookie;
	if (!reason)
		return false;
	now = p->time / SECOND;
	lifetime = ct_lifetime_of(e);
	if (lifetime && lifetime < now + cfg->lifetime_any)
		__sync_val_compare_and_swap(&e->lifetime, lifetime, now + cfg->lifetime_any);
	return true;
}

SEC("tcx/ingress")
int from_pod(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct pod_value *pod;
	struct ct_entry *ours = NULL, *theirs = NULL;
	bool theirs_first, begins = false, cut = false;
	__u32 reason = 0;
	int ret;

	look_at_state(&d);
	parse(ctx, &p);
	if (is_tagged(ctx) || changes_later(ctx, &p))
		p.shape = SHAPE_MALFORMED;
	if (p.shape == SHAPE_UNTOUCHED) {
		reason = cfg ? check_link(ctx, &p, cfg, d.slot) : 0;
		return reason ? drop(ctx, &p, &d, reason, PROGRAM_FROM_POD, DIRECTION_EGRESS) : TCX_NEXT;
	}
	if (p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, REASON_MALFORMED, PROGRAM_FROM_POD, DIRECTION_EGRESS);
	if (!cfg)
		return covered(&p.flow) && !destination_flags(&p.flow, d.slot)
			       ? drop(ctx, &p, &d, REASON_NOT_CONFIGURED, PROGRAM_FROM_POD, DIRECTION_EGRESS)
			       : TCX_NEXT;

	pod = local_pod(&p.source, d.slot);
	if (p.shape == SHAPE_FIRST_FRAGMENT &&
	    ((pod && pod->ifindex == ctx->ifindex) || !(cfg->flags & CONFIG_STRICT_SOURCE) ||
	     of_the_link(&p)))
		store_ports(&p);
	if (for_overlay(&p, cfg))
		return drop(ctx, &p, &d, REASON_OVERLAY_PORT, PROGRAM_FROM_POD, DIRECTION_EGRESS);

	/* A pod may only report errors about packets that were sent to it. */
	if (p.stray_error)
		return drop(ctx, &p, &d, REASON_UNKNOWN_SOURCE, PROGRAM_FROM_POD, DIRECTION_EGRESS);

	if (!pod || pod->ifindex != ctx->ifindex) {
		if (of_the_link(&p)) {
			reason = leaves_link_local(ctx, &p, cfg, &d);
			count_rule(d.cookie, ctx->len);
			return reason ? drop(ctx, &p, &d, reason, PROGRAM_FROM_POD, DIRECTION_EGRESS)
				      : to_stack(ctx, &d, cfg);
		}
		if (unplaced(&p, pod, &p.source, d.slot) &&
		    (!(cfg->flags & CONFIG_STRICT_SOURCE) || may_send_from(&p, ctx->ifindex, d.slot))) {
			if (held_at_source(&p, cfg, d.slot))
				return drop(ctx, &p, &d, REASON_POD_NOT_READY, PROGRAM_FROM_POD, DIRECTION_EGRESS);
			count(REASON_PASSED, DIRECTION_EGRESS, ctx->len);
			return TCX_NEXT; /* unmarked: the backstop sees where services lead */
		}
		if (cfg->flags & CONFIG_STRICT_SOURCE)
			return drop(ctx, &p, &d, REASON_UNKNOWN_SOURCE, PROGRAM_FROM_POD, DIRECTION_EGRESS);
		if (!pod && covered(&p.flow) && !destination_flags(&p.flow, d.slot))
			return drop(ctx, &p, &d, REASON_POD_NOT_READY, PROGRAM_FROM_POD, DIRECTION_EGRESS);
		if (!pod)
			return to_stack(ctx, &d, cfg);
	} else if (cfg->flags & CONFIG_STRICT_SOURCE && other_mac(ctx, pod, ETHERNET_SOURCE)) {
		return drop(ctx, &p, &d, REASON_UNKNOWN_SOURCE, PROGRAM_FROM_POD, DIRECTION_EGRESS);
	}
	judge_for(&d, pod);

	/* A flow of the pod, or a reply to one of the other side? Of a pod that a
	 * policy selects its own come first: should there be both, it must not
	 * leave by the ordinary way. Else the lower port is most often the server's. */
	theirs_first = bpf_ntohs(p.flow.sport) < bpf_ntohs(p.flow.dport) && !routed(pod, d.slot);
	if (theirs_first)
		theirs = find_reply_entry(&p);
	if (!theirs)
		ours = ct_find_original(&p, TUPLE_OUT);
	if (!ours && !theirs_first)
		theirs = find_reply_entry(&p);

	if (theirs) {
		reason = allowed_reply(&p, pod, theirs, &d, DIRECTION_INGRESS | host_reaches(cfg, theirs->flags));
		cut = reason && !mid_stream(&p);
		if (!reason) {
			d.generation = theirs->generation;
			if (!ct_note(ctx->len, theirs, &p, cfg, false))
				ct_create(ctx->len, &p, &d, cfg, TUPLE_IN | CT_REVERSE);
			return to_stack(ctx, &d, cfg);
		}
	} else if (ours) {
		d.live = 1;
		reason = still_allowed(ctx, &p, pod, ours, cfg, &d);
		if (!reason && !ct_note(ctx->len, ours, &p, cfg, true))
			ct_create(ctx->len, &p, &d, cfg, TUPLE_OUT);
	}
	/* Where policies have cut the other side's flow, the pod may begin one of its own. */
	if (cut || (!theirs && !ours && (is_subject(pod, &d) || !link_local(&p.flow)))) {
		reason = judge_new(&p, pod, &d);
		begins = !reason && p.shape != SHAPE_ICMP_ERROR && !p.unknown_fragment && !to_many(&p.flow) &&
			 !(is_subject(pod, &d) && (mid_stream(&p) || resumes_denied_flow(&p, pod, &d, cfg)));
		if (begins && connections_used_up(&p, cfg, TUPLE_OUT, 0)) {
			/* What began before goes on, without an entry. */
			begins = false;
			reason = mid_stream(&p) ? 0 : REASON_CONNECTION_SHARE;
		}
	}
	count_rule(d.cookie, ctx->len);
	if (reason)
		return drop(ctx, &p, &d, reason, PROGRAM_FROM_POD, DIRECTION_EGRESS);

	if (!no_address(&d.gateway)) {
		ret = to_gateway(ctx, &p, &d, cfg);
		reason = d.of_block || same_address(&d.gateway, &cfg->underlay)
				 ? REASON_TRANSLATED : REASON_TO_GATEWAY;
		/* What was refused is no flow yet. */
		begins = begins && ret >= 0;
		ret = finish(ctx, &p, &d, cfg, NULL, ret, WHAT(reason, PROGRAM_FROM_POD, DIRECTION_EGRESS));
	} else {
		ret = to_stack(ctx, &d, cfg);
	}
	if (begins) {
		ct_create(ctx->len, &p, &d, cfg, TUPLE_OUT);
		report_flow(ctx, &p, &d, cfg, WHAT(reason, PROGRAM_FROM_POD, DIRECTION_EGRESS));
	}
	return ret;
}

static __always_inline int reply_to_pod(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
					const struct config_value *cfg, struct ct_entry *e)
{
	d->gateway = e->gateway;
	d->flags = e->flags & CT_SERVICE;
	d->generation = e->generation;
	if (!ct_note(ctx->len, e, p, cfg, false))
		ct_create(ctx->len, p, d, cfg, TUPLE_OUT | CT_REVERSE);
	count(REASON_PASSED, DIRECTION_INGRESS, ctx->len);
	return TCX_NEXT;
}

SEC("tcx/egress")
int to_pod(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct pod_value *pod;
	struct ct_entry *e;
	__u32 reason, how;
	bool known = false; /* a flow of the pod, which the packet is no reply to, has its ports */

	look_at_state(&d);
	if (!cfg)
		return TCX_NEXT;
	parse(ctx, &p);
	if (p.shape == SHAPE_UNTOUCHED)
		return TCX_NEXT;
	if (p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, REASON_MALFORMED, PROGRAM_TO_POD, DIRECTION_INGRESS);
	keep_ports(&p);
	pod = local_pod(&p.flow.daddr, d.slot);
	if (!pod || pod->ifindex != ctx->ifindex) {
		reason = arrives_for_other(ctx, &p, pod, cfg, &d);
		count_rule(d.cookie, ctx->len);
		if (!reason)
			return TCX_NEXT;
		if (reason != REASON_UNKNOWN_DESTINATION || !is_flooded(ctx, d.slot))
			return drop(ctx, &p, &d, reason, PROGRAM_TO_POD, DIRECTION_INGRESS);
		count(reason, DIRECTION_INGRESS, ctx->len);
		return TCX_DROP;
	}
	judge_for(&d, pod);

	e = asks(&p) ? NULL : ct_find_replied(&p);
	if (e && ct_long_expired(e, p.time) && is_subject(pod, &d)) {
		/* For a pod with egress policies the entry still says which side began. */
		known = routed(pod, d.slot);
	} else if (e) {
		d.cookie = e->cookie;
		reason = stands(e, &d) ? 0 : judge_answer(ctx, &p, pod, e, &d);
		if (!reason)
			return reply_to_pod(ctx, &p, &d, cfg, e);
		/* What its policies have cut the other side may send by itself; but not
		 * with a service's address. */
		if (mid_stream(&p) || d.flags & CT_SERVICE)
			return drop(ctx, &p, &d, reason, PROGRAM_TO_POD, DIRECTION_INGRESS);
		known = true;
	}

	if (of_this_host(ctx, &p))
		d.flags = CT_OF_HOST;
	how = DIRECTION_INGRESS | host_reaches(cfg, d.flags);
	e = ct_find_original(&p, TUPLE_IN);
	/* What comes in by an interface in a flow of the host is not the host's. */
	if (e && (d.flags || !(e->flags & CT_OF_HOST) || p.shape == SHAPE_ICMP_ERROR))
		reason = allowed_again(&p, pod, e, &d, how);
	else
		reason = allowed(&p, pod, &d, how);
	count_rule(d.cookie, ctx->len);
	if (reason)
		return drop(ctx, &p, &d, reason, PROGRAM_TO_POD, DIRECTION_INGRESS);
	if (e) {
		bool of_flow = p.shape != SHAPE_ICMP_ERROR;

		if (of_flow && e->generation != d.generation)
			e->generation = d.generation;
		if (of_flow && d.flags && !(e->flags & CT_OF_HOST))
			ct_set_flags(e, CT_OF_HOST); /* it was there before this looked */
		if (!ct_note(ctx->len, e, &p, cfg, true))
			ct_create(ctx->len, &p, &d, cfg, TUPLE_IN);
	} else if (p.shape != SHAPE_ICMP_ERROR && !p.unknown_fragment && !known) {
		struct tuple peer = reversed(&p.flow);

		/* Without from_pod's mark it may be from outside, with that pod's address. */
		if (!d.flags && get_mark(ctx->mark, cfg) && local_pod(&p.flow.saddr, d.slot))
			d.flags = CT_OF_POD;
		if ((!mid_stream(&p) || (!is_subject(pod, &d) && destination_flags(&peer, d.slot))) &&
		    !connections_used_up(&p, cfg, TUPLE_IN, d.flags)) {
			ct_create(ctx->len, &p, &d, cfg, TUPLE_IN);
			report_flow(ctx, &p, &d, cfg, WHAT(REASON_PASSED, PROGRAM_TO_POD, DIRECTION_INGRESS));
		} else if (!mid_stream(&p)) {
			return drop(ctx, &p, &d, REASON_CONNECTION_SHARE, PROGRAM_TO_POD, DIRECTION_INGRESS);
		}
	}
	count(REASON_PASSED, DIRECTION_INGRESS, ctx->len);
	return TCX_NEXT;
}
