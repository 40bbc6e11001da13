/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At the host side of a pod's veth: what the pod sends, and what it gets. */

#pragma once

#include "forward.h"

/* The place of network policy: whether a new flow, or one whose verdict is of
 * another epoch, is allowed between pod and peer. */
static __always_inline bool allowed(const struct packet *p, const struct pod_value *pod, __u32 direction)
{
	(void)p;
	(void)pod;
	(void)direction;
	return true;
}

/* Lets a local pod's packet go its ordinary way. */
static __always_inline int to_stack(struct __sk_buff *ctx, const struct decision *d, const struct config_value *cfg)
{
	count(REASON_PASSED, DIRECTION_EGRESS, ctx->len);
	set_mark(ctx, cfg, d->flags & CT_SERVICE ? MARK_SERVICE : MARK_CHECKED);
	return TCX_NEXT;
}

/* Reports whether the packet stays on the link or the node, whoever sends it. */
static __always_inline bool link_local(const struct tuple *t)
{
	if (t->family == FAMILY_IPV4) {
		__u32 daddr = bpf_ntohl(t->daddr.words[3]);

		return daddr >> 28 == 0xe || daddr == 0xffffffff || daddr >> 16 == 0xa9fe;
	}
	return t->daddr.bytes[0] == 0xff || (t->daddr.bytes[0] == 0xfe && (t->daddr.bytes[1] & 0xc0) == 0x80);
}

/* Sends a local pod's packet to the gateway that its flow is pinned to. Returns a
 * verdict, or a reason, negative, why it is dropped. */
static __always_inline int to_gateway(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
				      const struct config_value *cfg)
{
	const struct address none = {};
	int err;

	if (!same_address(&d->gateway, &cfg->underlay)) {
		err = fits(ctx, p, d, cfg->overlay_ifindex) ?: clamp(ctx, p, d);
		return err ?: to_node(ctx, cfg, &d->gateway);
	}
	err = hop(ctx, p);
	if (err)
		return err;
	err = translate(ctx, p, d, cfg, &none);
	return err ?: to_outside(ctx, d, cfg);
}

/* Reports whether it is time to look again where a flow goes that nobody has answered
 * yet: its gateway may have ceased to be one just when the flow began, or never have
 * had an egress address. */
static __always_inline bool unanswered(const struct packet *p, const struct ct_entry *e, const struct config_value *cfg)
{
	if (e->rx_flags_seen)
		return false;
	if (p->flow.protocol == IPPROTO_TCP)
		return opens(p);
	return p->time / SECOND - e->last_tx_report >= cfg->report_interval;
}

/* Decides on a packet of a flow that the pod began and that has an entry. Returns
 * 0 with the entry's gateway in d, or why it is dropped. */
static __always_inline __u32 judge_known(const struct packet *p, const struct pod_value *pod, struct ct_entry *e,
					 const struct config_value *cfg, struct decision *d)
{
	bool pinned = !no_address(&e->gateway);
	bool serving = pinned && serves(&e->gateway);
	bool again = pinned && unanswered(p, e, cfg);
	__u32 reason;

	d->gateway = e->gateway;
	d->flags = e->flags & CT_SERVICE;
	if (p->shape == SHAPE_ICMP_ERROR || (e->epoch == d->epoch && pinned == serving && !again))
		return 0;
	if (!allowed(p, pod, DIRECTION_EGRESS))
		return REASON_NO_RULE;
	if (!serving || again) {
		reason = decide_egress(&p->flow, pod, d);
		if (reason >= REASON_DROPS)
			return reason;
		if (reason != REASON_TO_GATEWAY)
			__builtin_memset(&d->gateway, 0, sizeof(d->gateway));
		if (d->flags)
			ct_set_flags(e, d->flags);
		e->gateway = d->gateway;
		e->epoch = d->epoch;
		/* From here on it is a flow by the gateway, and who sent it has to
		 * begin anew. */
		return !pinned && reason == REASON_TO_GATEWAY && !opens(p) ? REASON_PREDATES_POLICY : 0;
	}
	e->epoch = d->epoch;
	return 0;
}

SEC("tcx/ingress")
int from_pod(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct pod_value *pod;
	struct ct_entry *ours = NULL, *theirs = NULL;
	bool theirs_first, begins = false;
	__u32 reason = 0;
	int ret;

	parse(ctx, &p);
	/* The kernel would take tags off, and what is in them past this program. */
	if (ctx->protocol == bpf_htons(ETH_P_8021Q) || ctx->protocol == bpf_htons(ETH_P_8021AD))
		p.shape = SHAPE_MALFORMED;
	if (p.shape == SHAPE_UNTOUCHED)
		return TCX_NEXT;
	if (p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, REASON_MALFORMED, PROGRAM_FROM_POD, DIRECTION_EGRESS);
	if (!cfg)
		return covered(&p.flow) && !destination_flags(&p.flow)
			       ? drop(ctx, &p, &d, REASON_NOT_CONFIGURED, PROGRAM_FROM_POD, DIRECTION_EGRESS)
			       : TCX_NEXT;

	/* Nobody tells of another one's packets. */
	if (p.shape == SHAPE_ICMP_ERROR && !same_address(&p.flow.saddr, &p.source))
		return drop(ctx, &p, &d, REASON_UNKNOWN_SOURCE, PROGRAM_FROM_POD, DIRECTION_EGRESS);

	pod = bpf_map_lookup_elem(&sluice_pods, &p.source);
	if (!pod || pod->ifindex != ctx->ifindex) {
		if (link_local(&p.flow))
			return to_stack(ctx, &d, cfg);
		if (cfg->flags & CONFIG_STRICT_SOURCE)
			return drop(ctx, &p, &d, REASON_UNKNOWN_SOURCE, PROGRAM_FROM_POD, DIRECTION_EGRESS);
		if (!pod && covered(&p.flow) && !destination_flags(&p.flow))
			return drop(ctx, &p, &d, REASON_POD_NOT_READY, PROGRAM_FROM_POD, DIRECTION_EGRESS);
		if (!pod)
			return to_stack(ctx, &d, cfg);
	}
	d.epoch = pod->epoch;

	/* A flow of the pod, or a reply to one of the other side? Of a pod that a
	 * policy chooses its own come first: should there be both, it must not
	 * leave by the ordinary way. Else the lower port is most often the server's. */
	theirs_first = !pod->flags && bpf_ntohs(p.flow.sport) < bpf_ntohs(p.flow.dport);
	if (theirs_first)
		theirs = ct_find(&p, TUPLE_IN | CT_REVERSE);
	if (!theirs)
		ours = ct_find_original(&p, TUPLE_OUT);
	if (!ours && !theirs_first)
		theirs = ct_find(&p, TUPLE_IN | CT_REVERSE);

	if (theirs) {
		d.epoch = theirs->epoch;
		if (!ct_note(ctx, theirs, &p, cfg, false))
			ct_create(ctx, &p, &d, cfg, TUPLE_IN | CT_REVERSE);
		return to_stack(ctx, &d, cfg);
	}
	if (ours) {
		d.live = 1;
		reason = judge_known(&p, pod, ours, cfg, &d);
		if (!reason && !ct_note(ctx, ours, &p, cfg, true))
			ct_create(ctx, &p, &d, cfg, TUPLE_OUT);
	} else if (!link_local(&p.flow)) {
		reason = allowed(&p, pod, DIRECTION_EGRESS) ? decide_egress(&p.flow, pod, &d) : REASON_NO_RULE;
		if (reason == REASON_TO_GATEWAY)
			reason = translatable(&p);
		begins = !reason && p.shape != SHAPE_ICMP_ERROR && !p.unknown_fragment;
	}
	if (reason)
		return drop(ctx, &p, &d, reason, PROGRAM_FROM_POD, DIRECTION_EGRESS);

	if (!no_address(&d.gateway)) {
		reason = same_address(&d.gateway, &cfg->underlay) ? REASON_TRANSLATED : REASON_TO_GATEWAY;
		ret = to_gateway(ctx, &p, &d, cfg);
		/* What was refused is no flow yet. */
		begins = begins && ret >= 0;
		ret = finish(ctx, &p, &d, cfg, NULL, ret, WHAT(reason, PROGRAM_FROM_POD, DIRECTION_EGRESS));
	} else {
		ret = to_stack(ctx, &d, cfg);
	}
	if (begins) {
		ct_create(ctx, &p, &d, cfg, TUPLE_OUT);
		report_flow(ctx, &p, &d, cfg, WHAT(reason, PROGRAM_FROM_POD, DIRECTION_EGRESS));
	}
	return ret;
}

SEC("tcx/egress")
int to_pod(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	const struct pod_value *pod;
	struct ct_entry *e;

	if (!cfg)
		return TCX_NEXT;
	parse(ctx, &p);
	if (p.shape == SHAPE_UNTOUCHED)
		return TCX_NEXT;
	if (p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, REASON_MALFORMED, PROGRAM_TO_POD, DIRECTION_INGRESS);
	pod = bpf_map_lookup_elem(&sluice_pods, &p.flow.daddr);
	if (!pod || pod->ifindex != ctx->ifindex)
		return TCX_NEXT;
	d.epoch = pod->epoch;

	e = ct_find_replied(&p);
	if (e) {
		d.gateway = e->gateway;
		d.flags = e->flags & CT_SERVICE;
		d.epoch = e->epoch;
		if (!ct_note(ctx, e, &p, cfg, false))
			ct_create(ctx, &p, &d, cfg, TUPLE_OUT | CT_REVERSE);
		count(REASON_PASSED, DIRECTION_INGRESS, ctx->len);
		return TCX_NEXT;
	}

	e = ct_find_original(&p, TUPLE_IN);
	if ((!e || e->epoch != d.epoch) && !allowed(&p, pod, DIRECTION_INGRESS))
		return drop(ctx, &p, &d, REASON_NO_RULE, PROGRAM_TO_POD, DIRECTION_INGRESS);
	if (e) {
		if (e->epoch != d.epoch)
			e->epoch = d.epoch;
		if (!ct_note(ctx, e, &p, cfg, true))
			ct_create(ctx, &p, &d, cfg, TUPLE_IN);
	} else if (p.shape != SHAPE_ICMP_ERROR && !p.unknown_fragment) {
		/* The rest of a connection whose beginning nobody saw may be one that
		 * the pod began. Taken for one of the other side, what the pod sends
		 * would be replies, and leave past its egress policy. */
		bool doubtful = p.flow.protocol == IPPROTO_TCP ? !opens(&p) : is_echo_reply(&p);
		struct tuple peer = reversed(&p.flow);

		if (!doubtful || destination_flags(&peer)) {
			ct_create(ctx, &p, &d, cfg, TUPLE_IN);
			report_flow(ctx, &p, &d, cfg, WHAT(REASON_PASSED, PROGRAM_TO_POD, DIRECTION_INGRESS));
		}
	}
	count(REASON_PASSED, DIRECTION_INGRESS, ctx->len);
	return TCX_NEXT;
}
