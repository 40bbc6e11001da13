/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Connection tracking of what a gateway translates. */

#pragma once

#include "forward.h"

/* Reports whether a packet that may begin a flow, with an egress address of this
 * node, is of one that lives. */
SUBPROGRAM int tracked(const struct packet *p)
{
	return p && begins(p) && ct_find_original(p, TUPLE_OUT);
}

/* Tracks a packet of a flow that this node translates, in its original direction. */
SUBPROGRAM int track_translated(struct __sk_buff *ctx, const struct packet *p, const struct decision *d,
				const struct config_value *cfg)
{
	struct ct_entry *e;

	if (!p || !d || !cfg || p->shape == SHAPE_ICMP_ERROR || p->unknown_fragment)
		return 0;
	e = ct_find_original(p, TUPLE_OUT);
	if (e && ct_note(ctx->len, e, p, cfg, true))
		return 0;
	ct_create(ctx->len, p, d, cfg, TUPLE_OUT);
	if (!d->of_host)
		report_flow(ctx, p, d, cfg, WHAT(REASON_TRANSLATED, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS));
	return 0;
}

/* Tracks a packet that comes back to a pod from a gateway. That of a local pod is
 * noted by to_pod. If the entry was lost, it is created again: the pod's next packet must
 * not count as a reply, and its translation must not count as one without a connection.
 * A packet that ends a connection does not create an entry for another node's pod. */
SUBPROGRAM int track_returned(struct __sk_buff *ctx, const struct packet *p, const struct decision *d,
			      const struct config_value *cfg, bool local)
{
	struct ct_entry *e;

	if (!p || !d || !cfg || p->shape == SHAPE_ICMP_ERROR || p->unknown_fragment)
		return 0;
	e = ct_find(p, TUPLE_OUT | CT_REVERSE);
	if (e && local)
		return 0;
	if (e && ct_note(ctx->len, e, p, cfg, false))
		return 0;
	if (local || !(p->tcp_flags & (TCP_FIN | TCP_RST)))
		ct_create(ctx->len, p, d, cfg, TUPLE_OUT | CT_REVERSE);
	return 0;
}
