//go:build ignore

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The programs. Each is the way of a packet at one hook; what they share is in
 * the headers, from the bytes of a frame up:
 *
 *	layout.h, maps.h	what is shared with the agent
 *	packet.h, report.h	parsing; counters and events
 *	ct.h			connection tracking
 *	egress.h		what the tables say
 *	nat.h, answer.h		changing packets
 *	forward.h		ways out
 */

#include "backstop.h"
#include "forward.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The place of network policy: whether a new flow, or one whose verdict is of
 * another epoch, is allowed between pod and peer. */
static __always_inline bool allowed(const struct packet *p, const struct pod_value *pod, __u32 direction)
{
	(void)p;
	(void)pod;
	(void)direction;
	return true;
}

/* Tracks a packet of a flow that this node translates, in its original direction. */
SUBPROGRAM int track_translated(struct __sk_buff *ctx, const struct packet *p, const struct decision *d,
				const struct config_value *cfg)
{
	struct ct_entry *e;

	if (!p || !d || !cfg || p->shape == SHAPE_ICMP_ERROR || p->unknown_fragment)
		return 0;
	e = ct_find_original(p, TUPLE_OUT);
	if (e && ct_note(ctx, e, p, cfg, true))
		return 0;
	ct_create(ctx, p, d, cfg, TUPLE_OUT);
	if (!d->of_host)
		report_flow(ctx, p, d, cfg, WHAT(REASON_TRANSLATED, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS));
	return 0;
}

/* Tracks a packet that comes back to a pod from a gateway. That of a local pod is
 * noted by to_pod; but should the entry be lost, it is made again, for the pod's
 * next packet must not be taken for a reply. */
SUBPROGRAM int track_returned(struct __sk_buff *ctx, const struct packet *p, const struct decision *d,
			      const struct config_value *cfg, bool local)
{
	struct ct_entry *e;

	if (!p || !d || !cfg || p->shape == SHAPE_ICMP_ERROR || p->unknown_fragment)
		return 0;
	e = ct_find(p, TUPLE_OUT | CT_REVERSE);
	if (e && !local)
		return ct_note(ctx, e, p, cfg, false);
	if (!e && local)
		ct_create(ctx, p, d, cfg, TUPLE_OUT | CT_REVERSE);
	return 0;
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
	if (p.shape == SHAPE_UNTOUCHED)
		return TCX_NEXT;
	if (p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, REASON_MALFORMED, PROGRAM_FROM_POD, DIRECTION_EGRESS);
	if (!cfg)
		return covered(&p.flow) && !destination_flags(&p.flow)
			       ? drop(ctx, &p, &d, REASON_NOT_CONFIGURED, PROGRAM_FROM_POD, DIRECTION_EGRESS)
			       : TCX_NEXT;

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

	e = ct_find(&p, TUPLE_OUT | CT_REVERSE);
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
		bool doubtful = pod->flags && p.flow.protocol == IPPROTO_TCP && !(p.tcp_flags & TCP_SYN);
		struct tuple peer = reversed(&p.flow);

		if (!doubtful || destination_flags(&peer)) {
			ct_create(ctx, &p, &d, cfg, TUPLE_IN);
			report_flow(ctx, &p, &d, cfg, WHAT(REASON_PASSED, PROGRAM_TO_POD, DIRECTION_INGRESS));
		}
	}
	count(REASON_PASSED, DIRECTION_INGRESS, ctx->len);
	return TCX_NEXT;
}

/* Reads which node an overlay packet comes from. */
SUBPROGRAM int overlay_source(struct __sk_buff *ctx, const struct config_value *cfg, struct address *node)
{
	struct bpf_tunnel_key key = {};

	if (!cfg || !node)
		return -EINVAL;
	if (is_ipv4(&cfg->underlay)) {
		if (bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), 0))
			return -EINVAL;
		*node = mapped(bpf_htonl(key.remote_ipv4));
		return 0;
	}
	if (bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return -EINVAL;
	__builtin_memcpy(node, key.remote_ipv6, 16);
	return 0;
}

/* A reply from a gateway to a pod of this node. */
static __always_inline int overlay_to_pod(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
					  const struct config_value *cfg, const struct pod_value *pod)
{
	d->epoch = pod->epoch;
	track_returned(ctx, p, d, cfg, true);
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
	err = translate(ctx, p, d, cfg, node);
	if (err)
		return err;
	d->gateway = cfg->underlay;
	d->flags = CT_FROM_TUNNEL;
	track_translated(ctx, p, d, cfg);
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
	__u32 what;
	int ret;

	parse(ctx, &p);
	if (!cfg || p.shape == SHAPE_MALFORMED)
		return drop(ctx, &p, &d, cfg ? REASON_MALFORMED : REASON_NOT_CONFIGURED, PROGRAM_FROM_OVERLAY,
			    DIRECTION_EGRESS);
	if (overlay_source(ctx, cfg, &node) || !bpf_map_lookup_elem(&sluice_nodes, &node)) {
		d.gateway = node;
		return drop(ctx, &p, &d, REASON_UNKNOWN_NODE, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
	}
	/* Nodes send nothing else over the overlay than what follows. */
	if (p.shape == SHAPE_UNTOUCHED)
		return drop(ctx, &p, &d, REASON_NO_RULE, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
	pod = bpf_map_lookup_elem(&sluice_pods, &p.flow.daddr);
	if (pod) {
		d.gateway = node;
		what = WHAT(REASON_REPLY_LOCAL, PROGRAM_FROM_OVERLAY, DIRECTION_INGRESS);
		ret = overlay_to_pod(ctx, &p, &d, cfg, pod);
	} else {
		what = WHAT(REASON_TRANSLATED, PROGRAM_FROM_OVERLAY, DIRECTION_EGRESS);
		ret = overlay_to_outside(ctx, &p, &d, cfg, &node);
	}
	return finish(ctx, &p, &d, cfg, &node, ret, what);
}

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

	d->gateway = cfg->underlay;
	if (no_address(&to->tunnel)) {
		pod = bpf_map_lookup_elem(&sluice_pods, &to->addr);
		if (!pod)
			return -REASON_NO_RULE;
		d->epoch = pod->epoch;
	}
	err = fits(ctx, p, d, pod ? pod->ifindex : cfg->overlay_ifindex) ?: hop(ctx, p);
	if (err)
		return err;
	if (rewrite(ctx, p, false, to))
		return -REASON_WRITE_FAILED;
	p->flow.daddr = to->addr;
	if (p->flow.dport)
		p->flow.dport = to->port;

	track_returned(ctx, p, d, cfg, pod);
	if (pod)
		return to_local_pod(ctx, pod);
	return clamp(ctx, p, d) ?: to_node(ctx, cfg, &to->tunnel);
}

SEC("tcx/ingress")
int from_netdev(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	struct translation to = {};
	struct packet p = {};
	struct decision d = {};
	__u32 reason;

	if (!cfg)
		return TCX_NEXT;
	parse(ctx, &p);
	if (p.shape == SHAPE_UNTOUCHED || p.shape == SHAPE_MALFORMED || is_overlay(&p, cfg))
		return TCX_NEXT;
	/* What opens a connection is no reply: it is for the host. */
	if (opens(&p) || !nat_find(&p.flow, TUPLE_IN, &to))
		return TCX_NEXT;
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

SEC("tcx/egress")
int to_netdev(struct __sk_buff *ctx)
{
	const struct config_value *cfg = config();
	const struct address none = {};
	struct packet p = {};
	struct decision d = {.of_host = 1};
	int err;

	if (!cfg || get_mark(ctx->mark, cfg) == MARK_TRANSLATED)
		return TCX_NEXT;
	parse(ctx, &p);
	if (p.shape == SHAPE_UNTOUCHED || p.shape == SHAPE_MALFORMED || is_overlay(&p, cfg) ||
	    !bpf_map_lookup_elem(&sluice_exits, &p.source))
		return TCX_NEXT;

	/* The host's own use of an egress address: its replies must not be taken
	 * for those of a pod, so it takes its port as pods do. An answer to who
	 * opened a connection keeps its port, of course. */
	if (!nat_known(&p.flow) &&
	    (translatable(&p) ||
	     (p.flow.protocol == IPPROTO_TCP && (p.tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))))
		return TCX_NEXT;
	d.egress = p.flow.saddr;
	err = translate(ctx, &p, &d, cfg, &none);
	if (err)
		return drop(ctx, &p, &d, -err, PROGRAM_TO_NETDEV, DIRECTION_EGRESS);
	track_translated(ctx, &p, &d, cfg);
	if (d.egress_port != p.flow.sport)
		count(REASON_HOST_TRANSLATED, DIRECTION_EGRESS, ctx->len);
	return TCX_NEXT;
}
