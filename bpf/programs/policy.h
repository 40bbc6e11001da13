/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What network policies say of a packet. They are asked of a flow's first packet, and
 * again when the generation has changed; in between its connection answers. */

#pragma once

#include "egress.h"

/* How a verdict is asked for, beside a direction. */
enum judge_how {
	JUDGE_INGRESS = DIRECTION_INGRESS,
	JUDGE_REPLY = 1 << 1,	/* the packet is a reply: asked is of the flow that it answers */
	JUDGE_KNOWN = 1 << 2,	/* the pod's flow was let through before */
	JUDGE_HOST = 1 << 3,	/* the peer may be this host itself, which reaches its pods */
	JUDGE_FLOW = 1 << 4,	/* the packet is an ICMP error: asked is of the flow that it is about */
};

/* Reports whether it is ICMP without ports: its connection does not identify the packet
 * then. An echo's identifier may be 0 too. */
static __always_inline bool no_ports(const struct packet *p)
{
	return is_icmp(p->flow.protocol) && p->shape != SHAPE_ICMP_ERROR && !p->flow.sport && !p->flow.dport;
}

static __noinline int no_reply(const struct packet *p)
{
	if (p->flow.family == FAMILY_IPV4)
		return p->icmp_type != ICMP4_ECHO_REPLY && p->icmp_type != ICMP4_TIMESTAMP_REPLY &&
		       p->icmp_type != ICMP4_INFORMATION_REPLY && p->icmp_type != ICMP4_MASK_REPLY;
	return p->icmp_type != ICMP6_ECHO_REPLY && p->icmp_type != ICMP6_NODE_INFORMATION_REPLY;
}

/* Reports whether the packet does not begin a flow: it is mid-stream in a connection whose
 * beginning was not seen, or a reply. It does not show which side began. If it counted as
 * the beginning, everything from the other side would be a reply, and pass whatever the
 * policies of the other direction say. */
static __always_inline bool mid_stream(const struct packet *p)
{
	return p->flow.protocol == IPPROTO_TCP ? !opens(p) : is_echo_reply(p);
}

/* Reports whether it is ICMP that cannot be a reply, whatever connection it would fit. */
static __always_inline bool asks(const struct packet *p)
{
	return no_ports(p) && no_reply(p);
}

#define NO_RULESET 0xffffffff /* is no ruleset's number */

/* Reports whether policies have a say in what a pod sends and gets. d->ruleset is its
 * ruleset from here on: that is known before the class of a peer, as the class of before
 * says nothing to a ruleset of now. */
static __noinline int is_subject(const struct pod_value *pod, struct decision *d)
{
	struct subject_key key = {.subject = pod->subject};
	const struct subject_value *subject;

	if (!d->ruleset) {
		subject = key.subject ? in_slot(sluice_subjects, d->slot, &key) : NULL;
		d->ruleset = subject ? subject->ruleset : NO_RULESET;
	}
	return d->ruleset != EMPTY_RULESET;
}

/* Sets what of a verdict's key is the packet's: protocol, and port or type. Returns
 * false if its fragment does not tell. */
static __always_inline bool traffic_of(struct verdict_key *key, const struct packet *p, __u32 how)
{
	bool later = p->shape == SHAPE_LATER_FRAGMENT;

	key->prefix_len = 64;
	if (p->shape == SHAPE_ICMP_ERROR && !(how & JUDGE_FLOW)) { /* of no flow that is known */
		key->protocol = p->header_protocol;
		key->port = bpf_htons(p->icmp_type);
		return true;
	}
	key->protocol = p->flow.protocol;
	switch (p->flow.protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		key->port = how & JUDGE_REPLY ? p->flow.sport : p->flow.dport;
		return !later || !p->unknown_fragment;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if ((p->flow.protocol == IPPROTO_ICMP) != (p->flow.family == FAMILY_IPV4))
			break; /* the other family's: just some protocol */
		if (how & (JUDGE_REPLY | JUDGE_FLOW)) /* what has an identifier was an echo */
			key->port = bpf_htons(p->flow.family == FAMILY_IPV4 ? ICMP4_ECHO : ICMP6_ECHO);
		else
			key->port = bpf_htons(p->icmp_type);
		return !later || how & JUDGE_REPLY;
	}
	key->prefix_len = 48; /* it has no ports */
	return true;
}

/* The peer's address, in the packet. */
static __always_inline const struct address *peer_of(const struct packet *p, __u32 how)
{
	if (how & JUDGE_INGRESS && how & JUDGE_FLOW && !(how & JUDGE_REPLY))
		return &p->flow.saddr;
	if (how & JUDGE_INGRESS)
		return how & JUDGE_REPLY ? &p->flow.daddr : &p->source;
	return how & JUDGE_REPLY ? &p->flow.saddr : &p->flow.daddr;
}

/* Returns what becomes of a new flow of a pod whose policies are not known: it is held
 * if there are any. What is let through is judged when they are known, as its entry has
 * no generation. */
static __noinline __u32 judge_unknown(void)
{
	const struct config_value *cfg = config();

	return !cfg || cfg->flags & CONFIG_NETWORK_POLICIES ? REASON_POD_NOT_READY : 0;
}

/* Returns the verdict of a ruleset on a peer's traffic, NULL if there is none. */
static __always_inline const struct verdict_value *
find_verdict(const struct ipcache_value *known, __u8 direction, struct verdict_key *traffic,
	     const struct decision *d)
{
	struct policy_key key = {.ruleset = d->ruleset, .direction = direction};
	struct peer_key member = {.member = known->member};
	const struct peer_value *peer = in_slot(sluice_peers, d->slot, &member);
	const struct policy_value *policy;

	if (!peer)
		return NULL;
	key.class = peer->class;
	policy = in_slot(sluice_policy, d->slot, &key);
	if (!policy) {
		key.class = ANY_CLASS;
		policy = in_slot(sluice_policy, d->slot, &key);
	}
	if (!policy)
		return NULL;
	traffic->set = policy->set;
	return in_slot(sluice_verdicts, d->slot, traffic);
}

/* Returns what the policies say of a packet between a pod and its peer: 0, or why it is
 * dropped; d->cookie names the rules. how is of enum judge_how. The peer is the backend,
 * unless it is NULL. */
SUBPROGRAM __u32 judge_peer(const struct packet *p, const struct pod_value *pod, struct decision *d, __u32 how,
			    const struct frontend_backend *backend)
{
	const struct verdict_value *verdict;
	const struct ipcache_value *known;
	struct verdict_key traffic = {};
	struct prefix_key prefix;
	__u32 flags;

	if (!p || !pod || !d)
		return REASON_MALFORMED;
	d->cookie = 0;
	if (!is_subject(pod, d))
		return 0;
	prefix_of(&prefix, &p->flow, backend ? &backend->addr : peer_of(p, how));
	known = in_slot(sluice_ipcache, d->slot, &prefix);
	flags = known ? known->flags : 0;
	if (how & JUDGE_HOST && flags & IPCACHE_HOST)
		return 0;
	if (!pod->subject)
		return how & JUDGE_KNOWN ? 0 : judge_unknown();
	if (!traffic_of(&traffic, p, how))
		return REASON_UNKNOWN_FRAGMENT;
	if (backend)
		traffic.port = backend->port;
	verdict = known ? find_verdict(known, how & JUDGE_INGRESS, &traffic, d) : NULL;
	if (!verdict)
		return REASON_POLICY_DENIED;
	d->cookie = verdict->cookie;
	if (!verdict->deny)
		return 0;
	return verdict->is_default ? REASON_POLICY_DENIED : REASON_POLICY_RULE;
}

/* Returns what the policies say of each backend that another node may choose for a flow:
 * one that is denied is enough. how is as in find_frontend. */
static __noinline __u32 judge_backends(const struct packet *p, const struct pod_value *pod, struct decision *d,
				       __u32 how)
{
	const struct frontend_value *f = find_frontend(&p->flow, how, d->destination, d->slot);
	__u32 cookie = d->cookie, reason;

	if (!f)
		return 0;
	if (f->flags & FRONTEND_MORE)
		return REASON_POLICY_DENIED;
	for (__u32 i = 0; i < FRONTEND_BACKENDS; i++) {
		if (i >= f->count)
			break;
		reason = judge_peer(p, pod, d, DIRECTION_EGRESS, &f->backends[i]);
		if (reason)
			return reason;
	}
	d->cookie = cookie;
	return 0;
}

/* The same for a packet whose destination the host may translate. Where that leads is not
 * known yet, and judged later: then d->flags has CT_SERVICE. */
SUBPROGRAM __u32 judge(const struct packet *p, const struct pod_value *pod, struct decision *d, __u32 how)
{
	__u32 led, reason, reply;

	if (!p || !pod || !d)
		return REASON_MALFORMED;
	d->cookie = 0;
	if (!is_subject(pod, d))
		return 0;
	if (!pod->subject || how & JUDGE_INGRESS ||
	    (p->shape == SHAPE_ICMP_ERROR && !(how & JUDGE_FLOW)))
		return judge_peer(p, pod, d, how, NULL);
	reply = how & JUDGE_REPLY ? CT_REVERSE : 0;
	led = leads(&p->flow, pod, d, reply);
	if (led != LEADS_NOWHERE)
		d->flags |= CT_SERVICE;
	if (led == LEADS_ON)
		return 0;
	reason = judge_peer(p, pod, d, how, NULL);
	if (reason || led != LEADS_AT_NODE)
		return reason;
	return judge_backends(p, pod, d, reply);
}

/* The same, of a pod that policies may have nothing to say of. */
static __always_inline __u32 allowed(const struct packet *p, const struct pod_value *pod, struct decision *d, __u32 how)
{
	d->cookie = 0;
	return is_subject(pod, d) ? judge(p, pod, d, how) : 0;
}

/* Reports whether the verdict that let a flow through is still valid. A flow that was judged
 * for no pod has none. */
static __always_inline bool stands(const struct ct_entry *e, const struct decision *d)
{
	return e->generation == d->generation && e->generation;
}

/* Reports, as JUDGE_KNOWN, whether the pod has had a flow already. While its policies are
 * not known a pod is new, and so are its flows: they have not been judged. One that has is
 * of another pod, that had the address before. */
static __always_inline __u32 known_of(const struct ct_entry *e)
{
	return e->generation ? 0 : JUDGE_KNOWN;
}

/* An error about a flow passes as the flow does: this is to judge the flow, for how. */
static __always_inline __u32 flow_of(const struct packet *p)
{
	return p->shape == SHAPE_ICMP_ERROR ? JUDGE_FLOW : 0;
}

static __noinline __u32 judge_again(const struct packet *p, const struct pod_value *pod, struct ct_entry *e,
				    struct decision *d, __u32 how)
{
	__u32 reason = allowed(p, pod, d, how | known_of(e) | flow_of(p));

	if (reason)
		return reason;
	if (!pod->subject)
		d->generation = e->generation;
	else if (p->shape != SHAPE_ICMP_ERROR)
		e->cookie = d->cookie;
	return 0;
}

/* The same for a packet of a flow with an entry, in the flow's original direction. The
 * entry keeps the verdict, unless it is not known yet. */
static __always_inline __u32 allowed_again(const struct packet *p, const struct pod_value *pod, struct ct_entry *e,
					   struct decision *d, __u32 how)
{
	d->cookie = e->cookie;
	if (stands(e, d) && !no_ports(p))
		return 0;
	return judge_again(p, pod, e, d, how);
}

static __noinline __u32 judge_reply(const struct packet *p, const struct pod_value *pod, const struct ct_entry *e,
				    struct decision *d, __u32 how)
{
	__u32 reason;

	if (no_ports(p))
		return 0;
	reason = allowed(p, pod, d, how | JUDGE_REPLY | known_of(e) | flow_of(p));
	if (!reason)
		d->cookie = e->cookie;
	return reason;
}

/* Reports, for a reply to a packet of such a flow, why it is dropped: that the other
 * side goes on by itself is no reason to let a flow live that has been forbidden. */
static __always_inline __u32 allowed_reply(const struct packet *p, const struct pod_value *pod, const struct ct_entry *e,
					   struct decision *d, __u32 how)
{
	d->cookie = e->cookie;
	return stands(e, d) ? 0 : judge_reply(p, pod, e, d, how);
}

/* Whether this host reaches its pods, for how: by flows with these flags, not by what
 * it forwards with its address. */
static __always_inline __u32 host_reaches(const struct config_value *cfg, __u16 flags)
{
	return flags & CT_OF_HOST && cfg->flags & CONFIG_ALLOW_LOCALHOST ? JUDGE_HOST : 0;
}
