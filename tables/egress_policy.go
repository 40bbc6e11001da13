// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// EgressPolicy is what the agent makes of a CiliumEgressGatewayPolicy. What
// does not parse is left out of the row and named in Errors, so no older
// version of the object stays applied.
type EgressPolicy struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid,omitempty"`
	Created time.Time `json:"created"`

	Generation int64 `json:"generation,omitempty"`

	// Namespace is the one whose annotation the policy follows from; empty if an object is it.
	Namespace string `json:"namespace,omitempty"`

	Selectors    []EgressSelector `json:"selectors,omitempty"`
	Destinations []netip.Prefix   `json:"destinations,omitempty"` // masked
	Excluded     []netip.Prefix   `json:"excluded,omitempty"`     // masked

	// Gateways are the items of egressGateways, or the one egressGateway. An item that does not
	// parse stays, with its Error, and elects no gateway.
	Gateways []GatewaySpec `json:"gateways,omitempty"`

	// Bandwidth is what all traffic of the policy may have on each gateway, in each direction by
	// itself, and PodBandwidth what each pod's may have.
	Bandwidth    Bandwidth `json:"bandwidth,omitempty"`
	PodBandwidth Bandwidth `json:"podBandwidth,omitempty"`

	Errors []FieldError `json:"errors,omitempty"`
}

// EgressSelector is one item of spec.selectors: the pods for which all three
// label selectors hold. Each is in the canonical text of
// [k8s.io/apimachinery/pkg/labels.Selector]; the empty text selects everything.
type EgressSelector struct {
	Namespaces string `json:"namespaces,omitempty"`
	Pods       string `json:"pods,omitempty"`
	Nodes      string `json:"nodes,omitempty"`
}

// String is the canonical text of the selector.
func (s EgressSelector) String() string {
	var parts []string
	for _, p := range []struct{ scope, selector string }{
		{"namespaces", s.Namespaces}, {"pods", s.Pods}, {"nodes", s.Nodes},
	} {
		if p.selector != "" {
			parts = append(parts, p.scope+"("+p.selector+")")
		}
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, " ")
}

// GatewaySpec is one item of spec.egressGateways.
type GatewaySpec struct {
	// canonical label selector of the candidates; empty selects all
	Nodes     string     `json:"nodes"`
	Interface string     `json:"interface,omitempty"` // name or alternative name; excludes EgressIP
	EgressIP  netip.Addr `json:"egressIP,omitzero"`
	Pool      string     `json:"pool,omitempty"`  // EgressIPPool that gives the policy EgressIP
	Error     string     `json:"error,omitempty"` // why the item elects no gateway
}

// String is the canonical text of the item.
func (g GatewaySpec) String() string {
	s := "nodes(" + g.Nodes + ")"
	if g.Interface != "" {
		s += " interface " + g.Interface
	}
	if g.Pool != "" {
		s += " pool " + g.Pool
	}
	if g.EgressIP.IsValid() {
		s += " ip " + g.EgressIP.String()
	}
	if g.Error != "" {
		s += " invalid: " + g.Error
	}
	return s
}

// Before reports whether p wins over o where both have a destination prefix of
// the same length: it is older, or of the same age and its name sorts first. Policies of
// namespaces come last.
func (p *EgressPolicy) Before(o *EgressPolicy) bool {
	if (p.Namespace == "") != (o.Namespace == "") {
		return p.Namespace == ""
	}
	if !p.Created.Equal(o.Created) {
		return p.Created.Before(o.Created)
	}
	return p.Name < o.Name
}

// EgressIPs returns the egress IPs that items without a mistake name, once each.
func (p *EgressPolicy) EgressIPs() (addrs []netip.Addr) {
	for _, g := range p.Gateways {
		if g.Error == "" && g.EgressIP.IsValid() && !slices.Contains(addrs, g.EgressIP) {
			addrs = append(addrs, g.EgressIP)
		}
	}
	return addrs
}

// TableHeader implements [statedb.TableWritable].
func (*EgressPolicy) TableHeader() []string {
	return []string{"Name", "Selectors", "Destinations", "Excluded", "Gateways", "Bandwidth", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (p *EgressPolicy) TableRow() []string {
	return []string{
		p.Name, listColumn(stringsOf(p.Selectors), " | "), listColumn(stringsOf(p.Destinations), ", "),
		listColumn(stringsOf(p.Excluded), ", "), listColumn(stringsOf(p.Gateways), " | "),
		bandwidthColumn(p), errorColumn(p.Errors),
	}
}

var (
	egressPolicyNameIndex = UniqueIndex("name", StringKeys,
		func(p *EgressPolicy) string { return p.Name })

	egressPolicySelectorIndex = IndexEach("selector", StringKeys,
		func(p *EgressPolicy) []string { return stringsOf(p.Selectors) })

	egressPolicyGroupIndex = Index("group", DigestKeys,
		func(p *EgressPolicy) bpf.Digest { return GroupDigest(p.Gateways) })

	egressPolicyDestinationIndex = IndexEach("destination", PrefixKeys,
		func(p *EgressPolicy) []netip.Prefix { return p.Destinations })

	egressPolicySourceIndex = IndexEach("source", StringKeys,
		func(p *EgressPolicy) []string { return AnchorsOf(p.Selectors) })

	egressPolicyWithEgressIPIndex = FlagIndex("with-egress-ip",
		func(p *EgressPolicy) bool { return len(p.EgressIPs()) > 0 })

	// EgressPoliciesWithEgressIP queries, by true, the policies that name egress IPs.
	EgressPoliciesWithEgressIP = egressPolicyWithEgressIPIndex.Query

	egressPolicyLimitedIndex = IndexIf("limited", Uint32Keys,
		func(p *EgressPolicy) (cookie uint32, has bool) {
			return bpf.PolicyCookie(p.Name), p.IsLimited()
		})

	// EgressPoliciesLimited queries the policies with limits of bandwidth that have a cookie.
	EgressPoliciesLimited = egressPolicyLimitedIndex.Query

	egressPolicyNodesIndex = IndexIf("nodes", BoolKeys, func(p *EgressPolicy) (nodes, has bool) {
		return true, slices.ContainsFunc(
			p.Selectors, func(s EgressSelector) bool { return s.Nodes != "" },
		)
	})

	// EgressPoliciesBySource queries the policies with a selector that requires something of
	// label sets: see [LabelSet.Anchors].
	EgressPoliciesBySource = egressPolicySourceIndex.Query

	// EgressPoliciesOfNodes queries, by true, the policies with a selector of nodes.
	EgressPoliciesOfNodes = egressPolicyNodesIndex.Query

	// EgressPolicyByName queries an egress policy by its name.
	EgressPolicyByName = egressPolicyNameIndex.Query

	// EgressPoliciesBySelector queries the policies that use a selector, by
	// its canonical text.
	EgressPoliciesBySelector = egressPolicySelectorIndex.Query

	// EgressPoliciesByGroup queries the policies that have a list of gateways,
	// see [GroupDigest].
	EgressPoliciesByGroup = egressPolicyGroupIndex.Query

	// EgressPoliciesByDestination queries the policies that name exactly a
	// prefix as a destination.
	EgressPoliciesByDestination = egressPolicyDestinationIndex.Query
)

// NewEgressPolicyTable creates the table of egress policies.
var NewEgressPolicyTable = Declare(
	"egress-policies", egressPolicyNameIndex, egressPolicySelectorIndex, egressPolicyGroupIndex,
	egressPolicyDestinationIndex, egressPolicySourceIndex, egressPolicyNodesIndex,
	egressPolicyWithEgressIPIndex, egressPolicyLimitedIndex,
)
