// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"

	"github.com/sluice-net/sluice/tables"
)

// Verdict says whether a packet passes.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"

	// NotJudged says that this node does not decide: see [Policy.Ask] and [Egress.Ask].
	NotJudged Verdict = "not judged here"
)

// Reasons of a verdict of network policies.
const (
	ReasonAllowRule    = "allowed by rule"
	ReasonDenyRule     = "denied by rule"
	ReasonDefaultDeny  = "default deny"  // no rule allows it, and some policy denies the rest
	ReasonDefaultAllow = "default allow" // policies select the pod, none has a default deny
	ReasonNoPolicy     = "no policy selects the pod"
	ReasonNoPolicies   = "there are no policies" // no policy has been read: none can decide
	// the map has nothing that covers the packet: it is dropped
	ReasonNoEntry      = "no entry"
	ReasonNotReady     = "pod not ready"         // no ruleset yet: new flows are dropped
	ReasonHost         = "host reaches its pods" // see --allow-localhost
	ReasonService      = "service: judged after translation"
	ReasonNoBackend    = "no backend of the service is known: nothing else is judged"
	ReasonManyBackends = "port of another node: too many backends to judge them all"
	ReasonItself       = "what it sends to itself does not leave it"
	ReasonNotHere      = "neither is a pod of this node"
	ReasonNotFromHere  = "not from a pod of this node"
)

// Party is the sender or the receiver of a packet.
type Party struct {
	Name string `json:"name"` // as it was asked for

	Pod      string            `json:"pod,omitempty"`  // namespace/name of the owner of the address
	Node     string            `json:"node,omitempty"` // that the pod is on, or that the address is of
	Services []string          `json:"services,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"` // of the pod

	Address netip.Addr   `json:"address,omitzero"` // of the packet
	Prefix  netip.Prefix `json:"prefix,omitzero"`  // of an entity without a single address
	Here    bool         `json:"here"`             // a pod of this node

	Scope         string   `json:"scope,omitempty"` // of the member: pods, node, cluster, world
	Member        uint32   `json:"member"`          // as a peer
	Class         uint32   `json:"class"`           // of the member
	PeerSelectors []string `json:"peerSelectors"`   // that select it as a peer

	// Precision of its class: not exact if its namespace has no room for more classes.
	Precision tables.Precision `json:"precision,omitempty"`

	Subject  *uint32  `json:"subject,omitempty"`  // of a local pod; 0: not known
	Ruleset  uint32   `json:"ruleset,omitempty"`  // of the subject
	Policies []string `json:"policies,omitempty"` // of which the ruleset has rules
	TooLarge string   `json:"tooLarge,omitempty"` // why it is isolated instead

	// Waits are the entries that the kernel does not have yet, and what for.
	Waits []string `json:"waits,omitempty"`
}

// Rule is a rule of a policy that decides.
type Rule struct {
	Policy  string `json:"policy"`          // kind/namespace/name
	Field   string `json:"field,omitempty"` // of the object
	Verdict string `json:"verdict"`         // allow, deny, or default deny
}

// String is as in "NetworkPolicy/shop/web spec.ingress[0]".
func (r Rule) String() string {
	if r.Field == "" {
		return r.Policy
	}
	return r.Policy + " " + r.Field
}

// Entry is the entry of a map that decides.
type Entry struct {
	Map    string `json:"map"`
	Key    string `json:"key"`
	Value  string `json:"value"`
	Status string `json:"status,omitempty"` // of the table's row: whether the kernel has it
	Error  string `json:"error,omitempty"`
}

// Decision is what network policies say of a packet.
type Decision struct {
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	Rules   []Rule  `json:"rules"`
	Pair    *Entry  `json:"pair,omitempty"` // of sluice_policy, which leads to Entry
	Entry   *Entry  `json:"entry"`          // of sluice_verdicts
}

// Judgement is the decision in one direction: egress of the sender, or ingress
// of the receiver.
type Judgement struct {
	Direction string `json:"direction"`
	Decision

	Subject uint32 `json:"subject"`
	Ruleset uint32 `json:"ruleset"`
	Member  uint32 `json:"member"`
	Class   uint32 `json:"class"`
}

// Judged is a decision, and those of the directions that make it.
type Judged struct {
	Decision

	// Directions are those that this node judges: none if neither side is a pod
	// of it.
	Directions []Judgement `json:"directions"`
}

// Policy is the answer to what network policies say.
type Policy struct {
	From     Party  `json:"from"`
	To       Party  `json:"to"`
	Protocol string `json:"protocol"`
	// of ICMP the type; of a service's address its own, not that of the backends
	Port uint16 `json:"port"`

	Judged

	// Backends are the answers for those of a service whose address To is, at the
	// ports that Port leads to.
	Backends []*Policy `json:"backends,omitempty"`

	// Ask are the nodes whose agents judge one side of the packet, which this one does not.
	Ask []string `json:"ask,omitempty"`

	// Egress says how the packet leaves the cluster, if it is allowed to.
	Egress *Egress `json:"egress,omitempty"`

	Kernel      *InKernel `json:"kernel,omitempty"` // nil if there are no maps
	Differences []string  `json:"differences"`      // of the maps from the tables
}

// InKernel is what the live maps make of it.
type InKernel struct {
	Backend string `json:"backend"` // kernel or memory
	Slots
	Judged
}

// Slots are the slots of maps by which packets are decided about, and of those that
// this agent writes to, which were asked. They differ while the agent starts.
type Slots struct {
	InForce uint32 `json:"slotInForce"`
	Own     uint32 `json:"slotOwn"`
}

// Way is what egress policies say of a packet.
type Way struct {
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`           // of the programs, such as "to gateway"
	Detail  string  `json:"detail,omitempty"` // why
	Rules   []Rule  `json:"rules"`            // the policy that decides
	Entry   *Entry  `json:"entry"`            // of sluice_egress

	Subject uint32 `json:"subject"` // of the sender
	Ruleset uint32 `json:"ruleset"` // for egress; 0: no egress policy selects the sender
	Group   uint32 `json:"group"`   // of gateways, 0 if none was looked up
	Bucket  uint32 `json:"bucket"`  // of the sender in the group

	Gateway netip.Addr `json:"gateway,omitzero"`
	// EgressIP is what the packet leaves the gateway with. Only the gateway knows.
	EgressIP netip.Addr `json:"egressIP,omitzero"`
	IfIndex  uint32     `json:"ifIndex,omitempty"` // of the device by which it leaves
}

// Egress is the answer to by which gateway a packet leaves the cluster.
type Egress struct {
	From Party `json:"from"`
	To   Party `json:"to"`

	Way

	// Ask is the node to ask, if this one does not decide.
	Ask string `json:"ask,omitempty"`

	Policies    []string     `json:"policies"`              // of the sender, in order of precedence
	Destination netip.Prefix `json:"destination,omitzero"`  // of the rule that decides
	Overrides   []string     `json:"overrides,omitempty"`   // policies that name it too and lose
	GatewayNode string       `json:"gatewayNode,omitempty"` // name of the gateway
	Device      string       `json:"device,omitempty"`

	// Translated are the ports of the destination at which kube-proxy leads the sender to a
	// service, whatever the answer says.
	Translated []string `json:"translated,omitempty"`

	Kernel      *EgressInKernel `json:"kernel,omitempty"`
	Differences []string        `json:"differences"`
}

// EgressInKernel is what the live maps make of it.
type EgressInKernel struct {
	Backend string `json:"backend"`
	Slots
	Way
}
