/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Source address translation: which address and port a flow leaves with. */

#pragma once

#include "rewrite.h"
#include "limit.h"

#define NAT_PROBES 512 /* ports that are tried for a connection */
#define NAT_WANTED 1
#define PORT_MIN 1024  /* lowest that is given out */
#define PORT_MAX 65535

/* Sees to it that there is a record for the replies to a flow, as the least recently
 * used ones go when the map is full, and that both name the node that the pod is on.
 * Returns 0 if the port has become another flow's. */
SUBPROGRAM int nat_complete(const struct tuple *flow, const struct translation *to, const struct address *tunnel,
			    __u64 time)
{
	struct translation owner = {};
	struct tuple replies;

	if (!flow || !to || !tunnel)
		return 0;
	replies_to(&replies, flow, &to->addr, to->port);
	if (!nat_find(&replies, TUPLE_IN, &owner, time))
		return !nat_record(&replies, TUPLE_IN | NAT_NEW | NAT_COUNTER(to->counter), &flow->saddr,
				   flow->sport, tunnel);
	if (!is_owner(&owner, flow))
		return 0;
	if (!same_address(&to->tunnel, tunnel)) { /* the pod has moved */
		if (!nat_record(&replies, TUPLE_IN | NAT_KNOWN | NAT_COUNTER(to->counter),
				&flow->saddr, flow->sport, tunnel))
			ledger_end(&replies, &owner, LEDGER_RENEWED);
		nat_record(flow, TUPLE_OUT | NAT_KNOWN | NAT_COUNTER(to->counter), &to->addr, to->port,
			   tunnel);
	}
	return 1;
}

/* Reports whether a flow is a connection that has not ended. It is a function of its
 * own for the stack: kernels before 6.9 count each function's in steps of 32 bytes. */
static __noinline bool connected(const struct tuple *flow, __u64 time)
{
	struct ct_entry *e = ct_lookup(flow, TUPLE_OUT);

	return e && ct_lifetime_of(e) * SECOND > time;
}

/* Reports whether no other flow has the port that replies with a tuple come
 * to. One whose connection has ended is taken from it. */
SUBPROGRAM int port_free(const struct tuple *replies, const struct tuple *flow, __u64 time)
{
	struct translation owner = {};
	struct tuple other;

	if (!replies || !flow)
		return 0;
	if (!nat_find(replies, TUPLE_IN, &owner, 0))
		return 1;
	if (!is_owner(&owner, flow)) {
		/* The entry of a connection is made after its translation. */
		if (owner.used + NAT_GRACE >= time / SECOND)
			return 0;
		other = reversed(replies);
		other.saddr = owner.addr;
		other.sport = owner.port;
		if (connected(&other, time))
			return 0;
		nat_remove(&other, TUPLE_OUT, owner.used);
	}
	if (nat_remove(replies, TUPLE_IN, owner.used) <= 0)
		return 0;
	ledger_end(replies, &owner, LEDGER_REUSED);
	return 1;
}

/* Reports whether what comes with a tuple is for others than pods that leave with the address: the
 * host leads the port to a backend, as a hostPort; or a socket of the host would get it. */
SUBPROGRAM int host_takes(struct __sk_buff *ctx, const struct tuple *replies, __u32 slot)
{
	const struct exit_value *exit;
	struct bpf_sock_tuple t = {};
	struct bpf_sock *socket;
	__u32 size;

	if (!replies)
		return 0;
	if (find_frontend(replies, 0, IPCACHE_HOST, slot))
		return 1;
	exit = bpf_map_lookup_elem(&sluice_exits, &replies->daddr);
	if (!exit || !(exit->flags & EXIT_SHARED))
		return 0;
	if (replies->family == FAMILY_IPV4) {
		t.ipv4.saddr = replies->saddr.words[3];
		t.ipv4.daddr = replies->daddr.words[3];
		t.ipv4.sport = replies->sport;
		t.ipv4.dport = replies->dport;
		size = sizeof(t.ipv4);
	} else {
		__builtin_memcpy(t.ipv6.saddr, &replies->saddr, 16);
		__builtin_memcpy(t.ipv6.daddr, &replies->daddr, 16);
		t.ipv6.sport = replies->sport;
		t.ipv6.dport = replies->dport;
		size = sizeof(t.ipv6);
	}
	if (replies->protocol == IPPROTO_TCP)
		socket = bpf_sk_lookup_tcp(ctx, &t, size, BPF_F_CURRENT_NETNS, 0);
	else if (replies->protocol == IPPROTO_UDP)
		socket = bpf_sk_lookup_udp(ctx, &t, size, BPF_F_CURRENT_NETNS, 0);
	else
		return 0;
	if (!socket)
		return 0;
	bpf_sk_release(socket);
	return 1;
}

/* The ports that may be given out. */
struct ports {
	struct port_range ranges[SHARED_PORT_RANGES];
	__u32 count;
	bool any; /* the host may keep one that is in no range */
};

static __always_inline void count_ports(struct ports *p)
{
	p->count = 0;
	for (int i = 0; i < SHARED_PORT_RANGES; i++)
		p->count += p->ranges[i].last ? p->ranges[i].last - p->ranges[i].first + 1 : 0;
}

static __always_inline void ports_of(struct ports *p, const struct exit_value *exit, const struct config_value *cfg)
{
	__builtin_memset(p, 0, sizeof(*p));
	if (exit->flags & EXIT_SHARED)
		__builtin_memcpy(p->ranges, cfg->shared_ports, sizeof(p->ranges));
	else
		p->ranges[0] = (struct port_range){PORT_MIN, PORT_MAX};
	count_ports(p);
}

/* Sets the ports that a flow may get of d->egress, and the device by which it leaves with that,
 * unless this node translates for another gateway. Of an address with blocks a pod gets ports of
 * this node, whichever node the pod is on, and so does the host if the address is fixed: replies
 * to other ports do not come to it. Returns 0, or why it gets none. */
static __always_inline __u32 ports_for(struct ports *p, struct decision *d,
				       const struct config_value *cfg)
{
	const struct block_value *block = block_of(&d->egress, cfg);

	if (d->of_host && !is_fixed(block))
		block = NULL;
	if (!d->of_block) {
		const struct exit_value *exit = bpf_map_lookup_elem(&sluice_exits, &d->egress);

		if (!exit)
			return REASON_NO_EGRESS_IP;
		d->exit = exit->ifindex;
		if (!block) {
			ports_of(p, exit, cfg);
			p->any = d->of_host;
			return p->count ? 0 : REASON_NO_SNAT_PORT;
		}
	}
	if (!block)
		return REASON_NO_EGRESS_IP;
	p->any = false;
	__builtin_memcpy(p->ranges, block->ports, sizeof(p->ranges));
	for (__u32 i = 0; i < SHARED_PORT_RANGES; i++)
		if (block->closed >= SHARED_PORT_RANGES - i)
			p->ranges[i].last = 0;
	count_ports(p);
	return p->count ? 0 : REASON_NO_PORT_BLOCK;
}

/* Returns one of the ports, in network order: the same for the same number. */
SUBPROGRAM int nth_port(const struct ports *p, __u32 number)
{
	__u32 n;

	if (!p || !p->count)
		return 0;
	n = number % p->count;
	for (int i = 0; i < SHARED_PORT_RANGES; i++) {
		__u32 size = p->ranges[i].last ? p->ranges[i].last - p->ranges[i].first + 1 : 0;

		if (n < size)
			return bpf_htons(p->ranges[i].first + n);
		n -= size;
	}
	return 0;
}

static __always_inline bool within_ranges(const struct port_range *ranges, __be16 port)
{
	__u16 n = bpf_ntohs(port);

	for (int i = 0; i < SHARED_PORT_RANGES; i++)
		if (ranges[i].last && n >= ranges[i].first && n <= ranges[i].last)
			return true;
	return false;
}

/* Reports whether a translation can be made for a packet that has none. */
static __always_inline __u32 translatable(const struct packet *p)
{
	if (p->shape == SHAPE_LATER_FRAGMENT)
		return REASON_UNKNOWN_FRAGMENT;
	if (p->shape == SHAPE_ICMP_ERROR)
		return REASON_NO_RULE;
	if (p->flow.protocol == IPPROTO_TCP || p->flow.protocol == IPPROTO_UDP)
		return 0;
	if (is_icmp(p->flow.protocol) &&
	    p->icmp_type == (p->flow.family == FAMILY_IPV4 ? ICMP4_ECHO : ICMP6_ECHO))
		return 0;
	return REASON_UNSUPPORTED_PROTOCOL;
}

/* Returns 0 if the packet, or each segment of it, fits a device's MTU, which is
 * put in d->mtu. */
static __always_inline int fits(struct __sk_buff *ctx, const struct packet *p, struct decision *d, __u32 ifindex)
{
	__u32 mtu = 0;
	int ret = bpf_check_mtu(ctx, ifindex, &mtu, 0, ctx->gso_size ? BPF_MTU_CHK_SEGS : 0);

	d->mtu = mtu;
	/* A device that is gone is found out when the packet is sent. An error is
	 * not answered, and is short enough for any path. */
	return ret > 0 && p->shape != SHAPE_ICMP_ERROR ? -REASON_TOO_BIG : 0;
}

/* Removes the record for replies to a flow whose other record could not be made. */
SUBPROGRAM int nat_undo(const struct tuple *replies)
{
	struct translation owner = {};

	if (replies && nat_find(replies, TUPLE_IN, &owner, 0) &&
	    nat_remove(replies, TUPLE_IN, NAT_NOW) > 0)
		ledger_end(replies, &owner, LEDGER_UNDONE);
	return 0;
}

/* Takes a port of the egress address d->egress for a flow, puts it in
 * d->egress_port, and records both directions. A flow of the host keeps any port
 * that is free, and gets another one only if it is not, or not a port of its node's blocks where
 * it has to be. Returns 0, or why not. */
SUBPROGRAM __u32 nat_allocate(struct __sk_buff *ctx, const struct tuple *flow, struct decision *d,
			      const struct config_value *cfg, const struct address *tunnel)
{
	struct tuple replies;
	__be16 reserved;
	struct ports p;
	__u32 reason;

	if (!flow || !d || !cfg || !tunnel)
		return REASON_NAT_FAILED;
	reason = no_address(&d->egress) ? REASON_NO_EGRESS_IP : ports_for(&p, d, cfg);
	if (reason)
		return reason;
	/* What comes to that port is taken for a packet of the overlay. */
	reserved = flow->protocol == IPPROTO_UDP && !d->of_host ? bpf_htons(cfg->overlay_port) : 0;
	replies_to(&replies, flow, &d->egress, flow->sport);

	for (int i = 0; i < NAT_PROBES; i++) {
		int err;

		/* The first one follows from the pod's port: a flow whose record was evicted gets
		 * the same port again, if that is free. */
		if (i > 0 || !(p.any || within_ranges(p.ranges, flow->sport)))
			replies.dport = nth_port(&p, i ? bpf_get_prandom_u32() : bpf_ntohs(flow->sport));
		if (replies.dport == reserved || !port_free(&replies, flow, d->began * SECOND))
			continue;
		/* Replies to the pod and what is for the host, or for a backend, would not be told
		 * apart. */
		if (!d->of_host && !d->of_block && host_takes(ctx, &replies, d->slot))
			continue;
		err = nat_record(&replies, TUPLE_IN | NAT_NEW | NAT_COUNTER(d->counter), &flow->saddr,
				 flow->sport, tunnel);
		if (err == -EEXIST) /* another CPU was faster */
			continue;
		if (err)
			return REASON_NAT_FAILED;
		d->egress_port = replies.dport;
		if (!nat_record(flow, TUPLE_OUT | NAT_NEW | NAT_COUNTER(d->counter), &d->egress,
				replies.dport, tunnel))
			return 0;
		nat_undo(&replies);
		return REASON_NAT_FAILED;
	}
	return REASON_NO_SNAT_PORT;
}

/* Returns why a flow gets no port of the egress address d->egress; 0 if it may have one. */
SUBPROGRAM __u32 ports_used_up(const struct tuple *flow, struct decision *d,
			       const struct config_value *cfg)
{
	const struct share_value *all, *own;
	struct share_key share = {};
	struct port_key key;
	struct ports p;

	if (!flow || !d || !cfg)
		return REASON_NAT_FAILED;
	if (d->of_host || d->renewed || ports_for(&p, d, cfg)) /* nat_allocate says what is missing */
		return 0;
	translation_share(&share, &flow->saddr, flow->family);
	if (share_used_up(&share, cfg))
		return REASON_CONNECTION_SHARE;
	port_share(&key, flow, &d->egress, NULL);
	all = bpf_map_lookup_elem(&sluice_ports, &key);
	if (!all)
		return 0;
	if (all->used >= p.count)
		return REASON_NO_SNAT_PORT;
	key.pod = flow->saddr;
	own = bpf_map_lookup_elem(&sluice_ports, &key);
	return own && over_share(own->used, all->used, p.count, cfg->port_share) ? REASON_PORT_SHARE : 0;
}

/* Counts the translation of a flow, in the share of a pod or of the host's address, and a
 * pod's port. The host may have other ports than are given out to pods. */
SUBPROGRAM int port_taken(const struct tuple *flow, struct decision *d,
			  const struct config_value *cfg)
{
	struct share_key share = {};
	struct port_key key;
	struct ports p;

	if (!flow || !d || !cfg || d->renewed)
		return 0;
	translation_share(&share, &flow->saddr, flow->family);
	share_add(&share, ENTRIES_OF_TRANSLATION);
	if (d->of_host || ports_for(&p, d, cfg))
		return 0;
	port_share(&key, flow, &d->egress, NULL);
	port_add(&key, p.count);
	key.pod = flow->saddr;
	port_add(&key, 0);
	return 0;
}

/* Reports whether the packet may be the first of a flow. */
static __always_inline bool begins(const struct packet *p)
{
	return p->flow.protocol == IPPROTO_TCP ? opens(p) : p->shape == SHAPE_WHOLE || p->shape == SHAPE_FIRST_FRAGMENT;
}

/* Reports whether a packet may begin a translation, or have another node get its replies:
 * tunnel, from which it came over the overlay, is the node of its pod. */
static __always_inline bool from_its_node(const struct packet *p, const struct decision *d, const struct address *tunnel)
{
	return no_address(tunnel) || lives_on(&p->flow, tunnel, d->slot);
}

/* Reports whether a flow may leave with an address and port that it has left with before, and sets
 * the device by which it does, unless the address moves: then the port has to be this node's still,
 * if it is known which are. */
static __noinline int may_leave_with(const struct address *egress, __be16 port, struct decision *d)
{
	const struct block_value *block;
	const struct exit_value *exit;

	if (d->of_block) {
		block = bpf_map_lookup_elem(&sluice_blocks, &d->egress);
		return same_address(egress, &d->egress) &&
		       (!block || !block->ports[0].last || within_ranges(block->ports, port));
	}
	exit = bpf_map_lookup_elem(&sluice_exits, egress);
	if (exit)
		d->exit = exit->ifindex;
	return exit != NULL;
}

/* Finds the source that a packet's flow leaves with: the one on record, whatever
 * the rules are now, if this node still has the address. Returns 0 with
 * d->egress, d->egress_port and d->exit set; NAT_WANTED if the flow is to get one,
 * with the address d->egress; or a reason, negative, why not. */
SUBPROGRAM int nat_prepare(const struct packet *p, struct decision *d, const struct address *tunnel)
{
	struct translation to = {};
	__u32 reason;

	if (!p || !d || !tunnel)
		return -REASON_WRITE_FAILED;
	if (nat_find(&p->flow, TUPLE_OUT, &to, p->time)) {
		/* A record that outlived its connection is not for the next one. */
		bool stale;

		if (!same_address(&to.tunnel, tunnel) && !from_its_node(p, d, tunnel))
			return -REASON_UNKNOWN_NODE;
		stale = !d->live && to.created + NAT_GRACE * SECOND < p->time && begins(p);

		if (!stale && may_leave_with(&to.addr, to.port, d) &&
		    nat_complete(&p->flow, &to, tunnel, p->time)) {
			d->egress = to.addr;
			d->egress_port = to.port;
			d->counter = to.counter;
			d->began = to.created / SECOND;
			return 0;
		}
		/* Or the address has moved away: replies would not come back. */
		nat_forget(&p->flow, &to);
	}
	reason = no_address(&d->egress) ? decide_service(&p->flow, d) : 0;
	d->renewed = same_address(&d->egress, &to.addr);
	reason = reason < REASON_DROPS ? translatable(p) : reason;
	if (!reason && !from_its_node(p, d, tunnel))
		reason = REASON_UNKNOWN_NODE;
	return reason ? -(int)reason : NAT_WANTED;
}

/* Gives a packet the source d->egress and d->egress_port. */
SUBPROGRAM int nat_apply(struct __sk_buff *ctx, const struct packet *p, struct decision *d)
{
	struct translation to = {};

	if (!p || !d)
		return -REASON_WRITE_FAILED;
	if (d->of_host && d->egress_port == p->flow.sport)
		return 0;
	if (!d->of_host && fits(ctx, p, d, d->exit))
		return -REASON_TOO_BIG;
	to.addr = d->egress;
	to.port = d->egress_port;
	return rewrite(ctx, p, true, &to) ? -REASON_WRITE_FAILED : 0;
}

/* Finds the egress policy for which a flow counts that gets a translation, if none was asked: its
 * connection is known, and its record was lost. */
SUBPROGRAM int find_policy(const struct tuple *flow, struct decision *d)
{
	const struct route_value *route;
	const struct pod_value *pod;

	if (!flow || !d || d->policy)
		return 0;
	pod = any_pod(&flow->saddr, d->slot);
	route = pod ? route_of(pod, d->slot) : NULL;
	if (!route)
		return 0;
	d->egress_ruleset = route->egress_ruleset;
	find_gateway(flow, d);
	return 0;
}

/* Gives a packet the source that its flow leaves with: the one on record, or else
 * d->egress, or if that is none what the rules say, with a port of its own. tunnel
 * is the node that it came from over the overlay, or none. Returns 0, or a reason,
 * negative, why not. The steps are functions side by side, as they would be too
 * deep for the stack one in another. */
static __always_inline int translate(struct __sk_buff *ctx, const struct packet *p, struct decision *d,
				     const struct config_value *cfg, const struct address *tunnel)
{
	int ret = nat_prepare(p, d, tunnel);

	if (ret == NAT_WANTED) {
		d->began = p->time / SECOND;
		if (d->of_block)
			find_policy(&p->flow, d);
		d->counter = counter_of(d);
		ret = -(int)ports_used_up(&p->flow, d, cfg);
		if (!ret)
			ret = -(int)nat_allocate(ctx, &p->flow, d, cfg, tunnel);
		if (!ret)
			port_taken(&p->flow, d, cfg);
		/* Another CPU may have been faster with the same flow. */
		if (ret == -REASON_NAT_FAILED && nat_known(&p->flow))
			ret = nat_prepare(p, d, tunnel);
		if (ret == NAT_WANTED) /* and have lost it again */
			ret = -REASON_NAT_FAILED;
	}
	return ret ?: nat_apply(ctx, p, d);
}
