/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the agent and the programs share: keys and values of all maps, and the numbers in them.
 * Those of connections are in connections.h; what is reported of packets is in event.h. The Go
 * side is in the packages bpf and bpf/ctmap; a test compares sizes and offsets. Fields are in
 * host order unless they are __be. */

#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* An address: IPv4 as an IPv4-mapped IPv6 address, so that one comparison does
 * for both. All zero is none. */
struct address {
	union {
		__u8 bytes[16];
		__be32 words[4];
		__u64 halves[2];
	};
};

enum family { FAMILY_IPV4 = 4, FAMILY_IPV6 = 6 };

/* The maps by which packets are decided about are there twice, in two slots of maps of
 * maps. */

#define SLOTS 2

/* sluice_state: one entry, under index 0, that is written and read in one step. */
struct state_value {
	__u32 slot;	  /* that packets look into */
	__u32 generation; /* never 0, and another one after each change by which verdicts may be others:
			   * connections keep theirs while it is the same */
};

/* sluice_pods: pods of this node, and those that it may be the gateway of. */

enum pod_flags {
	POD_LOCAL = 1 << 0, /* of this node: packets are delivered to it, and judged for it */
};

struct pod_key {
	struct address addr;
};

struct pod_value {
	__u32 subject; /* 0: it is not known what policies say, new flows are held */
	__u32 ifindex; /* host side of the pod's veth */
	__u32 flags;
	__u8 mac[6]; /* of the pod's own interface, zero if not known */
	__u8 pad[6];
	__u64 namespace; /* a digest of its name; 0 of pods of other nodes */
};

/* sluice_devices: the pod that a device leads to, by one of its addresses. */

struct device_key {
	__u32 ifindex; /* host side of the pod's veth */
};

struct device_value {
	struct address addr; /* of sluice_pods, in any slot */
};

/* sluice_ipcache: what is known of addresses and prefixes. */

enum ipcache_flags {
	IPCACHE_IN_CLUSTER = 1 << 0,
	IPCACHE_HOST = 1 << 1,
	IPCACHE_NODE = 1 << 2,
	IPCACHE_SERVICE = 1 << 3,
	IPCACHE_POD = 1 << 4,
	IPCACHE_LOCAL_SCOPE = 1 << 5,
	IPCACHE_APISERVER = 1 << 6,
	IPCACHE_LOCAL_PODS = 1 << 7, /* of a pod of this node, or where its pods get their addresses from */
};

/* A prefix of either family: IPv4 is in the first four bytes, not mapped. */
struct prefix_key {
	__u32 prefix_len; /* 32 for what precedes the address, then the prefix's own */
	__u8 family;
	__u8 pad[3];
	__u8 addr[16];
};

struct ipcache_value {
	__u32 member;
	__u32 flags;
	struct address tunnel; /* node to encapsulate to */
};

/* sluice_services: ports that kube-proxy translates beside those of cluster addresses: of
 * external and load balancer addresses, node ports, and host ports, which a CNI plugin
 * translates. */

enum frontend_flags {
	FRONTEND_AT_NODE = 1 << 0, /* the node that has the address translates it */
	FRONTEND_MORE = 1 << 1,	   /* there are more backends than are listed */
};

#define FRONTEND_BACKENDS 16

/* The address is none for a port of all nodes, and the family's loopback address for one of
 * any address of this node. */
struct frontend_key {
	struct address addr;
	__be16 port;
	__u8 protocol;
	__u8 family;
	__u8 pad[4];
};

struct frontend_backend {
	struct address addr;
	__be16 port;
	__u8 pad[6];
};

struct frontend_value {
	__u64 namespace; /* whose pods rely on it; 0: all do, 1: none does */
	__u32 flags;
	__u32 count; /* of the backends, which are there with FRONTEND_AT_NODE only */
	struct frontend_backend backends[FRONTEND_BACKENDS];
};

/* sluice_subjects: the ruleset of a subject. sluice_routes: its egress ruleset; it has none
 * unless an egress policy selects it. */

#define EMPTY_RULESET 1 /* of pods that no network policy selects: all is allowed to them */

struct subject_key {
	__u32 subject;
};

struct subject_value {
	__u32 ruleset;
};

struct route_value {
	__u32 egress_ruleset;
};

/* sluice_peers: the class of a member. */

struct peer_key {
	__u32 member;
};

struct peer_value {
	__u32 class;
};

/* sluice_egress: gateway group of an egress ruleset's destinations. */

#define GROUP_EXCLUDED 0

struct egress_key {
	__u32 prefix_len; /* 64 for what precedes the address, then the prefix's own */
	__u32 ruleset;	  /* an egress ruleset */
	__u8 family;
	__u8 pad[3];
	__u8 addr[16];
};

struct egress_value {
	__u32 group; /* or GROUP_EXCLUDED */
	__u8 bits; /* of the destination prefix, for user space */
	__u8 pad[3];
	__u32 policy; /* a cookie of its name: its translations count for it */
};

/* sluice_gateways: gateway of a bucket of sources: a node, or an egress address that moves,
 * of which sluice_blocks says where it is. */

#define GATEWAY_BUCKETS 256

struct gateway_key {
	__u32 group;
	__u32 bucket; /* hash of the source address modulo GATEWAY_BUCKETS */
};

struct gateway_value {
	struct address gateway; /* underlay address, or an egress address; none: traffic is dropped */
	__be32 egress4;		/* on nodes elected in the group: what IPv4 traffic leaves with, whatever the gateway is */
	__u32 ifindex;
	struct address egress6;
};

/* sluice_exits: egress addresses of this node. */

enum exit_flags {
	EXIT_SHARED = 1 << 0, /* the host itself uses the address: only config.shared_ports are given out */
};

struct exit_key {
	struct address addr;
};

struct exit_value {
	__u32 ifindex; /* device by which traffic with the address leaves */
	__u32 flags;
};

/* sluice_votes: egress addresses that this node may have, with the votes for it. Its key is an
 * exit_key. The node has an address as long as a majority of a set of voters votes for it; at other
 * times it neither answers for the address nor sends with it. */

#define EGRESS_VOTERS 5
#define VOTER_SETS 2 /* are in use while one replaces the other: their numbers are successive */

struct vote {
	__u64 until; /* nanoseconds of CLOCK_BOOTTIME */
	__u64 set;   /* its number; 0: no vote */
};

struct votes_value {
	/* By the number of the set, modulo VOTER_SETS, and the place of the voter in it. */
	struct vote votes[VOTER_SETS][EGRESS_VOTERS];
	__u32 ifindex;		   /* of the device that gets the address; 0: not in use yet */
	struct bpf_spin_lock lock; /* the agent updates entries in place: see entries.go */
};

/* sluice_voters: one entry, under index 0: which nodes vote. */

struct voter_set {
	__u32 number;
	__u32 majority;			      /* 0: there is no such set */
	struct address voters[EGRESS_VOTERS]; /* underlay addresses */
};

struct voters_value {
	__u64 clock; /* added to CLOCK_BOOTTIME when voters are told the time; random, of this boot */
	__u64 term;  /* of this node's own votes, for user space */
	struct voter_set sets[VOTER_SETS]; /* by their numbers modulo VOTER_SETS */
};

/* sluice_told: egress addresses that move, and which node has told that it has one. Its key is an
 * exit_key. */

struct told_value {
	struct address node; /* underlay address; none: no node has told */
	__u64 at;	     /* nanoseconds of CLOCK_BOOTTIME */
};

/* sluice_blocks: egress addresses to which the nodes of pods translate themselves, by ports of
 * their own: a gateway keeps nothing of a connection. They move, unless they are fixed. Its key is
 * an exit_key. */

#define SHARED_PORT_RANGES 4
#define BLOCK_PORT_MIN 1024 /* the first port of block 0 */

struct port_range {
	__u16 first;
	__u16 last; /* inclusive; 0: the range is not used */
};

enum block_flags {
	BLOCK_FIXED = 1 << 0, /* a node has it, by others: there are no votes, but an exit */
};

struct block_value {
	struct address gateway; /* underlay address of the node that has it; none: no node has */
	struct port_range ports[SHARED_PORT_RANGES]; /* of this node */
	__u32 size;	/* ports of a block */
	__u16 closed;	/* so many of ports, the last ones, are for flows that have them already */
	__u16 flags;	/* enum block_flags */
};

/* sluice_owners: the node that has a block of ports of such an address. */

struct owner_key {
	struct address egress;
	__u32 block;
	__u32 pad;
};

struct owner_value {
	struct address node; /* its underlay address */
};

/* sluice_covered: destination prefixes of all egress policies. Its key is a prefix_key. */

struct covered_value {
	__u32 covered; /* 1 */
};

/* sluice_limits: egress policies with limits of bandwidth, each for one direction on a node. */

struct limit_key {
	__u32 policy; /* an egress_value's */
};

struct limit_value {
	__u64 rate;	/* of all traffic of the policy, bytes a second; 0: no limit */
	__u64 pod_rate; /* of each pod's */
};

/* sluice_policy: the verdict set of a ruleset and a class of peers. Of a class without an
 * entry what there is of ANY_CLASS says all. */

#define ANY_CLASS 0

struct policy_key {
	__u32 ruleset;
	__u32 class;
	__u8 direction;
	__u8 pad[3];
};

struct policy_value {
	__u32 set;
};

/* sluice_verdicts: the verdicts of a set, by longest prefix. */

struct verdict_key {
	__u32 prefix_len; /* 32 for any traffic, 48 for a protocol, then the bits of the port */
	__u32 set;
	__u8 protocol;
	__u8 pad;
	__be16 port; /* of the destination; of ICMP the type */
};

struct verdict_value {
	__u32 cookie; /* names the rules that it comes from, 0 for none */
	__u8 deny;
	__u8 is_default; /* no rule decides, but what holds where none does */
	__u8 pad[2];
};

/* Packets that rules decided, in the direction of their flows, as metrics. Rules count
 * in a slot of sluice_rulehits by their cookie, modulo RULE_SLOTS, if sluice_ruleslot says
 * that it is theirs: it is of those that came first. The others count in sluice_rules. */

#define RULE_SLOTS 4096

struct rule_key {
	__u32 cookie;
};

/* sluice_nodes: addresses of the cluster's nodes. */

enum node_flags {
	NODE_ALIVE = 1 << 0, /* ready: connections pinned to it stay with it */
};

struct node_key {
	struct address addr;
};

struct node_value {
	__u32 flags;
};

/* sluice_keys: one entry, under index 0, that is replaced in one step. Overlay packets are
 * sent with a proof by the first key, and taken with one by any of them. */

#define OVERLAY_KEYS 2

struct overlay_key {
	__u64 halves[2]; /* of SipHash */
	__u8 number;	 /* by which packets name it */
	__u8 pad[7];
};

struct overlay_keys_value {
	struct overlay_key keys[OVERLAY_KEYS];
	__u32 count;	       /* of keys */
	__u32 accept_unsigned; /* 1: packets without such a proof are taken too */
};

/* sluice_paths: nodes that the agent probes, and when there were packets, in nanoseconds of
 * CLOCK_MONOTONIC; 0: not yet. Its key is a node_key. */

#define PATH_NONCES 4

struct path_value {
	__u64 sent;	/* a packet of a flow to the node */
	__u64 seen;	/* one that is proven to come from it */
	__u64 answered; /* an answer to a probe */
	__u64 answers;	/* how many there were */
	__u64 nonces[PATH_NONCES]; /* of the last ones, by their number modulo PATH_NONCES */
	__u64 clock;	   /* the time there, of its last answer to votes */
	__u64 clock_nonce; /* of the votes that it answered */
	__u64 told;	   /* number of the last message about which addresses it has */
};

/* sluice_config: one entry, under index 0. */

enum config_flags {
	CONFIG_STRICT_SOURCE = 1 << 0, /* drop what pods send from addresses that are not theirs */
	CONFIG_BACKSTOP = 1 << 1,      /* the backstop drops */
	CONFIG_FLOW_EVENTS = 1 << 2,   /* report new flows */
	CONFIG_ALLOW_LOCALHOST = 1 << 3, /* this host reaches its pods whatever policies say */
	CONFIG_NETWORK_POLICIES = 1 << 4, /* there are some: pods are held while it is not known what they say */
	CONFIG_FLOATING = 1 << 5, /* sluice_votes has entries */
	CONFIG_EGRESS_IPS = 1 << 6, /* there may be egress addresses that move */
	CONFIG_LIMITS = 1 << 7, /* sluice_limits has entries */
	CONFIG_PACED = 1 << 8, /* devices by which pods' packets leave wait for departure times */
};

struct config_value {
	struct address underlay; /* of this node, from which overlay packets are sent */
	__u32 overlay_ifindex;
	__u32 vni;
	__u32 flags;
	__u32 mark_mask; /* two bits or more of the packet mark that are Sluice's */
	__u32 mark_shift;
	__u16 overlay_port;
	__u16 pad;
	__u32 lifetime_tcp; /* seconds, as the others */
	__u32 lifetime_any;
	__u32 lifetime_syn;
	__u32 lifetime_closing;
	__u32 report_interval;
	struct port_range shared_ports[SHARED_PORT_RANGES];
	__u16 connection_share; /* that a pod may have, in percent of what is free; 0: no limit */
	__u16 port_share;	/* the same, of the ports of an egress address towards a destination */
};

/* Values of the bits of the mark. */
enum mark {
	MARK_CHECKED = 1,    /* from_pod let it pass: the backstop does too */
	MARK_TRANSLATED = 2, /* it has its egress address: to_netdev leaves it alone */
	MARK_SERVICE = 3,    /* from_pod let it pass to be translated: the backstop judges where it ends */
};
