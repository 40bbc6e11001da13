/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* At the overlay device: other nodes' pods that leave here, replies to this node's, and
 * probes. */

#pragma once

#include "block.h"
#include "vote.h"

/* Reads which node an overlay packet comes from. It must be for the one address of this
 * node that others send to: the socket takes packets to all. */
SUBPROGRAM int overlay_source(struct __sk_buff *ctx, const struct config_value *cfg, struct address *node)
{
	struct bpf_tunnel_key key = {};

	if (!cfg || !node)
		return -EINVAL;
	if (is_ipv4(&cfg->underlay)) {
		if (bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), 0))
			return -EINVAL;
		*node = mapped(bpf_htonl(key.remote_ipv4));
		return bpf_htonl(key.local_ipv4) == cfg->underlay.words[3] ? 0 : -EINVAL;
	}
	if (bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return -EINVAL;
	__builtin_memcpy(node, key.remote_ipv6, 16);
	return __builtin_memcmp(key.local_ipv6, &cfg->underlay, 16) ? -EINVAL : 0;
}

/* Returns 0 if a packet is a reply to a flow that a pod has by a gateway, or why it is dropped. */
SUBPROGRAM __u32 returned_by(const struct packet *p, const struct address *gateway)
{
	const struct ct_entry *e;

	if (!p || !gateway)
		return REASON_MALFORMED;
	if (p->unknown_fragment)
		return REASON_UNKNOWN_FRAGMENT;
	e = ct_find_replied(p);
	return e && same_address(&e->gateway, gateway) ? 0 : REASON_NO_RULE;
}

/* A reply from a gateway to a pod of this node; to_pod notes it in the flow's entry. Nothing
 * that comes here makes an entry: if it was lost, the pod's next packet makes another one. */
static __always_inline int overlay_to_pod(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
					  const struct pod_value *pod, const struct address *gateway)
{
	__u32 reason = returned_by(p, gateway);

	if (reason)
		return -(int)reason;
	return fits(ctx, p, d, pod->ifindex) ?: to_local_pod(ctx, pod);
}

/* A packet of another node's pod, whose gateway this node is. */
static __always_inline int overlay_to_outside(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
					      const struct config_value *cfg, const struct address *node)
{
	int err;

	err = hop(ctx, p);
	if (err)
		return err;
	judge_for(d, NULL);
	d->live = tracked(p);
	if (!d->live && begins(p) && connections_used_up(p, cfg, TUPLE_OUT, 0))
		return -REASON_CONNECTION_SHARE;
	err = translate(ctx, p, d, cfg, node) ?:
	      within_limit(ctx, cfg, d->counter, d->began, &p->flow.saddr, DIRECTION_EGRESS);
	if (err)
		return err;
	d->gateway = cfg->underlay;
	d->flags = CT_FROM_TUNNEL;
	track_translated(ctx, p, d, cfg);
	count_traffic(d->counter, d->began, ctx->len, DIRECTION_EGRESS);
	return to_outside(ctx, d, cfg);
}

SEC("tcx/ingress")
int from_overlay(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct packet p = {};
	struct decision d = {};
	struct address node = {};
	const struct pod_value *pod;
	bool is_reply, of_block;
	int ret, proof;
	__u32 what;

	look_at_state(&d);
	parse(ctx, &p);
	if (!cfg || p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, cfg ? REASON_MALFORMED : REASON_NOT_CONFIGURED, PROGRAM_FROM_OVERLAY,
			    DIRECTION_EGRESS);
	if (overlay_source(ctx, cfg, &node) || !bpf_map_lookup_elem(&sluice_nodes, &node)) {
		d.gateway = node;
		return drop(ctx, &p, &d, REASON_UNKNOWN_NODE, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
	}
	if (ctx->protocol == bpf_htons(ETH_P_PROBE)) {
		ret = take_message(ctx, cfg, &node);
		if (ret < 0)
			return drop(ctx, &p, &d, -ret, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
		return ret ?: TCX_NEXT; /* where nothing takes it */
	}
	/* Nodes send nothing else over the overlay than what follows. */
	if (p.shape == SHAPE_UNTOUCHED)
		return drop(ctx, &p, &d, REASON_NO_RULE, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
	proof = proven(ctx, &p, cfg, &node);
	if (proof < 0)
		return drop(ctx, &p, &d, -proof, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
	if (proof != PROOF_UNSIGNED)
		note_path(&node, p.time, false);
	keep_ports(&p);
	pod = local_pod(&p.flow.daddr, d.slot);
	of_block = !pod && moves(&p.flow.daddr, cfg);
	is_reply = pod || of_block;
	if (proof != PROOF_UNSIGNED && proof != (is_reply ? DIRECTION_INGRESS : DIRECTION_EGRESS))
		return drop(ctx, &p, &d, REASON_NO_RULE, PROGRAM_FROM_OVERLAY, proof);
	if (pod) {
		d.gateway = node;
		what = WHAT(REASON_REPLY_LOCAL, PROGRAM_FROM_OVERLAY, DIRECTION_INGRESS);
		ret = overlay_to_pod(ctx, &p, &d, pod, &node);
	} else if (of_block) {
		what = WHAT(REASON_REPLY_LOCAL, PROGRAM_FROM_OVERLAY, DIRECTION_INGRESS);
		ret = block_to_pod(ctx, &p, &d, cfg);
	} else if (moves(&p.flow.saddr, cfg)) {
		what = WHAT(REASON_TRANSLATED, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
		ret = block_to_outside(ctx, &p, &d, cfg, &node);
	} else {
		what = WHAT(REASON_TRANSLATED, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
		ret = overlay_to_outside(ctx, &p, &d, cfg, &node);
	}
	if (proof == PROOF_UNSIGNED && ret >= 0)
		count(REASON_OVERLAY_UNSIGNED, is_reply ? DIRECTION_INGRESS : DIRECTION_EGRESS, ctx->len);
	return finish(ctx, &p, &d, cfg, &node, ret, what);
}
