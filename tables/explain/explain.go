// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Cell provides the [Explainer].
var Cell = cell.Module(
	"explain",
	"What becomes of a packet and why",

	cell.Provide(New),
)

// Tables are the inputs of answers.
type Tables struct {
	cell.In

	DB        *statedb.DB
	LocalNode tables.LocalNode

	// Which pod or node has an address.
	Endpoints     statedb.Table[*tables.Endpoint]
	Nodes         statedb.Table[*tables.Node]
	NodeAddresses statedb.Table[*tables.NodeAddress]
	Services      statedb.Table[*tables.Service]
	Backends      statedb.Table[*tables.BackendSlice]
	Cluster       tables.ClusterPrefixes

	// The desired entries.
	Pods        statedb.Table[*tables.Pod]
	Subjects    statedb.Table[*tables.Subject]
	Routes      statedb.Table[*tables.SubjectRoute]
	IPCache     statedb.Table[*tables.IPCache]
	Frontends   statedb.Table[*tables.Frontend]
	Members     statedb.Table[*tables.Member]
	Entries     statedb.Table[*tables.PolicyEntry]
	Verdicts    statedb.Table[*tables.Verdict]
	Configs     statedb.Table[*tables.DatapathConfig]
	EgressRules statedb.Table[*tables.EgressRule]
	Gateways    statedb.Table[*tables.EgressGateway]
	Blocks      statedb.Table[*tables.EgressBlock]
	Covered     statedb.Table[*tables.CoveredPrefix]

	// What these entries come from.
	Classes        statedb.Table[*tables.Class]
	Selectors      statedb.Table[*tables.Selector]
	Rulesets       statedb.Table[*tables.Ruleset]
	Cookies        statedb.Table[*tables.RuleCookie]
	EgressRulesets statedb.Table[*tables.EgressRuleset]
}

// Explainer answers questions. It is safe for concurrent use.
type Explainer struct {
	t    Tables
	maps *bpf.Maps // nil: there are none
}

// New returns an [Explainer]. maps is nil if there are none to compare the tables with.
func New(t Tables, maps *bpf.Maps) *Explainer { return &Explainer{t, maps} }

// backend names what holds the live maps, empty if there are none.
func (e *Explainer) backend() string {
	if e.maps == nil || e.maps.Backend() == nil {
		return ""
	}
	return e.maps.Backend().Name()
}

// Tables and maps are not read at one moment, so a write in between may look like a difference. The
// answer is computed again before a difference is reported.
const (
	attempts  = 3
	looksTime = 2 * time.Millisecond
)

// agreed repeats an answer until tables and maps agree, at most a few times.
func agreed(answer func() (differences int)) {
	for i := range attempts {
		if answer() == 0 {
			return
		}
		if i < attempts-1 {
			time.Sleep(looksTime)
		}
	}
}

// Policy says what network policies decide on a packet to a port, as [ParseTraffic] has it. An
// error that is an [Error] is about the question.
func (e *Explainer) Policy(from, to, port, protocol string) (answer *Policy, err error) {
	traffic, err := ParseTraffic(port, protocol)
	if err != nil {
		return nil, err
	}
	agreed(func() int {
		if answer, err = e.policy(from, to, traffic); err != nil {
			return 0
		}
		return len(answer.AllDifferences())
	})
	return answer, err
}

func (e *Explainer) policy(from, to string, traffic Traffic) (*Policy, error) {
	txn := e.t.DB.ReadTxn()
	if err := e.ready(txn); err != nil {
		return nil, err
	}
	a, b, err := e.parties(txn, from, to)
	if err != nil {
		return nil, err
	}
	if err := suits(traffic, b.place().Addr()); err != nil {
		return nil, err
	}
	ports, err := e.servicePorts(txn, traffic, b)
	if err != nil {
		return nil, err
	}
	if traffic, err = e.resolve(txn, traffic, b, ports); err != nil {
		return nil, err
	}
	answer, err := e.answer(txn, a, b, traffic, false)
	if err != nil {
		return nil, err
	}
	if len(ports) > 0 {
		answer.Backends, err = e.backends(txn, answer, ports)
	}
	leaves := len(ports) == 0 && answer.Verdict != Denied && a.Pod != "" && e.isOutside(txn, b)
	if err == nil && leaves {
		answer.Egress, err = e.egress(from, to)
	}
	if answer.Egress != nil && answer.Egress.Verdict == NotJudged {
		answer.Egress = nil // Ask says who knows
	}
	return answer, err
}

// isOutside reports whether egress policies apply to a destination.
func (e *Explainer) isOutside(txn statedb.ReadTxn, to Party) bool {
	known, _ := (&wanted{e, txn}).known(to.place())
	return known.Flags == 0
}

// elsewhere returns the nodes that judge what parties send or let in, without this one.
func (e *Explainer) elsewhere(parties ...Party) (nodes []string) {
	for _, p := range parties {
		if p.Pod != "" && p.Node != "" && p.Node != e.t.LocalNode.Name {
			nodes = append(nodes, p.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// suits reports, as an error, whether there cannot be such a packet.
func suits(t Traffic, to netip.Addr) error {
	switch {
	case t.Protocol == protocolICMP && !to.Is4():
		return errorf(FieldProtocol, "icmp is of IPv4: want icmpv6")
	case t.Protocol == protocolICMPv6 && to.Is4():
		return errorf(FieldProtocol, "icmpv6 is of IPv6: want icmp")
	}
	return nil
}

func (e *Explainer) answer(
	txn statedb.ReadTxn, from, to Party, traffic Traffic, backend bool,
) (*Policy, error) {
	p := packet{from.place(), to.place(), traffic, backend}
	answer := &Policy{
		From: from, To: to, Protocol: protocolName(traffic.Protocol), Port: traffic.Port,
		Judged: judge(&wanted{e, txn}, p), Differences: []string{},
	}
	if answer.Verdict != Denied {
		answer.Ask = e.elsewhere(from, to)
	}
	held := e.backend()
	if held == "" {
		return answer, nil
	}
	maps := &present{Explainer: e, txn: txn}
	answer.Kernel = &InKernel{Backend: held, Slots: maps.slots(), Judged: judge(maps, p)}
	answer.Differences = differences(answer.Judged, answer.Kernel.Judged)
	return answer, maps.failed()
}

// AllDifferences returns the differences, with those of the backends.
func (p *Policy) AllDifferences() []string {
	texts := p.Differences
	if p.Egress != nil {
		texts = append(texts, p.Egress.Differences...)
	}
	for _, b := range p.Backends {
		for _, d := range b.AllDifferences() {
			texts = append(texts, b.asBackend()+": "+d)
		}
	}
	return texts
}
