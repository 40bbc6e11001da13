/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What a pod sends of flows that have an entry: whether policies still allow it, also where the
 * host translates it to, and whether it keeps its gateway. */

#pragma once

#include "conntrack.h"
#include "link.h"

/* Reports whether to decide again where a flow without replies goes: its gateway may have
 * ceased to be one just when the flow began, or never have had an egress address. */
static __always_inline bool unanswered(const struct packet *p, const struct ct_entry *e, const struct config_value *cfg)
{
	if (e->rx_flags_seen)
		return false;
	if (p->flow.protocol == IPPROTO_TCP)
		return opens(p);
	return p->time / SECOND - e->last_tx_report >= cfg->report_interval;
}

/* Decides again where a flow goes. Returns 0 with the gateway in its entry and in d, or
 * why its packet is dropped. */
static __noinline __u32 reroute(const struct packet *p, const struct pod_value *pod, struct ct_entry *e, struct decision *d)
{
	bool pinned = !no_address(&e->gateway);
	__u32 reason = decide_egress(&p->flow, pod, d);

	if (reason >= REASON_DROPS)
		return reason;
	if (reason != REASON_TO_GATEWAY)
		__builtin_memset(&d->gateway, 0, sizeof(d->gateway));
	if (d->flags)
		ct_set_flags(e, d->flags);
	e->gateway = d->gateway;
	e->generation = d->generation;
	/* From here on it is a flow by the gateway, and who sent it has to
	 * begin anew. */
	return !pinned && reason == REASON_TO_GATEWAY && !opens(p) ? REASON_PREDATES_POLICY : 0;
}

/* Judges a packet of a known flow, or a reply, by where the host has translated the flow: the
 * backstop does not see replies, nor packets that have not reached it yet. If the host does
 * not know the flow, or it leads to the pod itself, the packet is allowed. */
static __noinline __u32 judge_translated(struct __sk_buff *ctx, const struct packet *p, const struct pod_value *pod,
				  struct decision *d, bool reply)
{
	struct tuple t = reply ? reversed(&p->flow) : p->flow;
	struct frontend_backend backend = {};
	__u32 reason;

	if (!is_subject(pod, d) || !translated_by_host(ctx, &t))
		return 0;
	if (!same_address(&t.daddr, reply ? &p->flow.saddr : &p->flow.daddr) ||
	    t.dport != (reply ? p->flow.sport : p->flow.dport))
		d->flags |= CT_SERVICE;
	if (!(d->flags & CT_SERVICE) || same_address(&t.saddr, &t.daddr))
		return 0;
	backend.addr = t.daddr;
	backend.port = t.dport;
	reason = judge_peer(p, pod, d, DIRECTION_EGRESS | JUDGE_KNOWN | flow_of(p), &backend);
	if (!reason)
		d->cookie = 0; /* the backstop counts for its rules */
	return reason;
}

/* Decides again whether policies allow a flow. While they deny its backend, which the
 * backstop reports, the entry keeps its generation, so that replies are judged too. */
static __noinline __u32 judge_known(struct __sk_buff *ctx, const struct packet *p, const struct pod_value *pod,
				    struct ct_entry *e, struct decision *d)
{
	__u32 reason = allowed_again(p, pod, e, d, DIRECTION_EGRESS);

	if (!reason && p->shape == SHAPE_ICMP_ERROR) /* which the backstop does not judge */
		return judge_translated(ctx, p, pod, d, false);
	if (!reason && judge_translated(ctx, p, pod, d, false)) {
		d->generation = e->generation;
		d->cookie = 0;
	}
	return reason;
}

/* The same for a reply to such a flow, whose entry stays as it is. The host goes on
 * translating when the service is gone. */
static __noinline __u32 judge_answer(struct __sk_buff *ctx, const struct packet *p, const struct pod_value *pod,
				     const struct ct_entry *e, struct decision *d)
{
	__u32 reason = judge_reply(p, pod, e, d, DIRECTION_EGRESS);

	d->flags |= e->flags & CT_SERVICE;
	return reason ?: judge_translated(ctx, p, pod, d, true);
}

/* Decides where a flow goes that has a gateway, or may get one. */
static __noinline __u32 route_known(const struct packet *p, const struct pod_value *pod, struct ct_entry *e,
				    const struct config_value *cfg, struct decision *d)
{
	bool serving = !no_address(&e->gateway) && serves(&e->gateway, cfg);

	if (p->shape == SHAPE_ICMP_ERROR)
		return 0;
	if ((!serving || unanswered(p, e, cfg)) && !link_local(&p->flow))
		return reroute(p, pod, e, d);
	e->generation = d->generation;
	return 0;
}

/* Decides on a packet of a flow that the pod began and that has an entry. Returns
 * 0 with the entry's gateway in d, or why it is dropped. */
static __always_inline __u32 still_allowed(struct __sk_buff *ctx, const struct packet *p, const struct pod_value *pod,
					   struct ct_entry *e, const struct config_value *cfg, struct decision *d)
{
	bool stale = !stands(e, d);
	__u32 reason;

	d->gateway = e->gateway;
	d->flags = e->flags & CT_SERVICE;
	d->cookie = e->cookie;
	if (stale || no_ports(p)) {
		reason = judge_known(ctx, p, pod, e, d);
		if (reason)
			return reason;
	}
	/* Most packets are of flows that go their ordinary way, as they did before. */
	return stale || !no_address(&d->gateway) ? route_known(p, pod, e, cfg, d) : 0;
}
