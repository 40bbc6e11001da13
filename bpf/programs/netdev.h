/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At devices with egress addresses: replies to pods, and the host's own traffic. */

#pragma once

#include "block.h"
#include "fence.h"

/* Reports whether the packet is one of the overlay itself, from this node or to it. */
static __always_inline bool is_overlay(const struct packet *p, const struct config_value *cfg)
{
	return p->flow.protocol == IPPROTO_UDP && p->flow.dport == bpf_htons(cfg->overlay_port) &&
	       (same_address(&p->flow.saddr, &cfg->underlay) || same_address(&p->flow.daddr, &cfg->underlay));
}

/* A reply to something that left with an egress address. Changes p's flow to
 * what the pod sees. */
static __always_inline int reply_from_outside(struct __sk_buff *ctx, struct packet *p, struct decision *d,
					      const struct translation *to, const struct config_value *cfg)
{
	const struct pod_value *pod = NULL;
	int err;

	d->gateway = moves(&p->flow.daddr, cfg) ? p->flow.daddr : cfg->underlay;
	if (no_address(&to->tunnel)) {
		pod = local_pod(&to->addr, d->slot);
		if (!pod)
			return -REASON_NO_RULE;
	} else {
		d->flags = CT_FROM_TUNNEL;
	}
	judge_for(d, pod);
	err = fits(ctx, p, d, pod ? pod->ifindex : cfg->overlay_ifindex) ?: hop(ctx, p);
	if (!err)
		err = within_limit(ctx, cfg, to->counter, to->created / SECOND, &to->addr, DIRECTION_INGRESS);
	if (err)
		return err;
	if (rewrite(ctx, p, false, to))
		return -REASON_WRITE_FAILED;
	p->flow.daddr = to->addr;
	if (p->flow.dport)
		p->flow.dport = to->port;

	count_traffic(to->counter, to->created / SECOND, ctx->len, DIRECTION_INGRESS);
	track_returned(ctx, p, d, cfg, pod);
	if (pod)
		return to_local_pod(ctx, pod);
	return clamp(ctx, p, d) ?: to_node(ctx, p, cfg, &to->tunnel, DIRECTION_INGRESS);
}

SEC("tcx/ingress")
int from_netdev(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct translation to = {};
	struct packet p = {};
	struct decision d = {};
	__u32 reason;
	int ret;

	look_at_state(&d);
	if (!cfg)
		return TCX_NEXT;
	parse(ctx, &p);
	if (cfg->flags & CONFIG_FLOATING && fenced(ctx, &p, DIRECTION_INGRESS))
		return drop(ctx, &p, &d, REASON_NOT_OWNED, PROGRAM_FROM_NETDEV, DIRECTION_INGRESS);
	if (p.shape == SHAPE_UNTOUCHED || p.shape == SHAPE_MALFORMED || is_overlay(&p, cfg))
		return TCX_NEXT;
	/* What opens a connection is no reply: it is for the host. */
	if (opens(&p))
		return TCX_NEXT;
	if (!nat_find(&p.flow, TUPLE_IN, &to, p.time)) {
		ret = cfg->flags & CONFIG_EGRESS_IPS ? block_from_outside(ctx, &p, &d, cfg) : 0;
		return ret ? finish(ctx, &p, &d, cfg, NULL, ret,
				    WHAT(REASON_REPLY_OVERLAY, PROGRAM_FROM_NETDEV, DIRECTION_INGRESS))
			   : TCX_NEXT;
	}
	keep_ports(&p);
	if (!same_address(&to.addr, &p.flow.daddr)) {
		reason = no_address(&to.tunnel) ? REASON_REPLY_LOCAL : REASON_REPLY_OVERLAY;
		return finish(ctx, &p, &d, cfg, NULL, reply_from_outside(ctx, &p, &d, &to, cfg),
			      WHAT(reason, PROGRAM_FROM_NETDEV, DIRECTION_INGRESS));
	}
	/* Of the host itself, which may have been given another port. */
	if (to.port != p.flow.dport && rewrite(ctx, &p, false, &to))
		return drop(ctx, &p, &d, REASON_WRITE_FAILED, PROGRAM_FROM_NETDEV, DIRECTION_INGRESS);
	return TCX_NEXT;
}

/* Reports whether a packet of the host, which has an egress address and no translation,
 * leaves without a record. Packets from outside make the host send, so what they can make
 * it record is limited: nothing for a refused connection, or for a port that no pod gets,
 * and no more than the host's share of the map. */
SUBPROGRAM int needs_no_port(const struct packet *p, const struct config_value *cfg)
{
	const struct exit_value *exit;
	struct translation owner = {};
	struct share_key share = {};
	struct tuple replies;
	struct ports ports;

	if (!p || !cfg)
		return true;
	exit = bpf_map_lookup_elem(&sluice_exits, &p->source);
	/* The answer to what opened a connection keeps its port. */
	if (!exit || (p->flow.protocol == IPPROTO_TCP &&
		      (p->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)))
		return true;
	replies_to(&replies, &p->flow, &p->flow.saddr, p->flow.sport);
	if (nat_find(&replies, TUPLE_IN, &owner, 0))
		return false;
	if (p->flow.protocol == IPPROTO_TCP && p->tcp_flags & TCP_RST)
		return true;
	ports_of(&ports, exit, cfg);
	if (is_fixed(block_of(&p->source, cfg)) ? bpf_ntohs(p->flow.sport) < BLOCK_PORT_MIN
						: !within_ranges(ports.ranges, p->flow.sport))
		return true;
	translation_share(&share, &p->flow.saddr, p->flow.family);
	return share_used_up(&share, cfg);
}

SEC("tcx/egress")
int to_netdev(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	const struct address none = {};
	struct packet p = {};
	struct decision d = {.of_host = 1, .flags = CT_OF_HOST};
	bool is_translated;
	int err;

	look_at_state(&d);
	if (!cfg)
		return TCX_NEXT;
	is_translated = get_mark(ctx->mark, cfg) == MARK_TRANSLATED;
	if (is_translated && !(cfg->flags & CONFIG_FLOATING))
		return TCX_NEXT;
	parse(ctx, &p);
	if (cfg->flags & CONFIG_FLOATING && fenced(ctx, &p, DIRECTION_EGRESS))
		return drop(ctx, &p, &d, REASON_NOT_OWNED, PROGRAM_TO_NETDEV, DIRECTION_EGRESS);
	if (is_translated || p.shape == SHAPE_UNTOUCHED || p.shape == SHAPE_MALFORMED ||
	    is_overlay(&p, cfg) || !bpf_map_lookup_elem(&sluice_exits, &p.source))
		return TCX_NEXT;

	/* The host's own use of an egress address: its replies must not be taken
	 * for those of a pod, so it takes its port as pods do. */
	if (!nat_known(&p.flow) && (translatable(&p) || needs_no_port(&p, cfg)))
		return TCX_NEXT;
	keep_ports(&p);
	d.egress = p.flow.saddr;
	judge_for(&d, NULL);
	d.live = tracked(&p);
	err = translate(ctx, &p, &d, cfg, &none);
	if (err)
		return drop(ctx, &p, &d, -err, PROGRAM_TO_NETDEV, DIRECTION_EGRESS);
	track_translated(ctx, &p, &d, cfg);
	if (d.egress_port != p.flow.sport)
		count(REASON_HOST_TRANSLATED, DIRECTION_EGRESS, ctx->len);
	return TCX_NEXT;
}
