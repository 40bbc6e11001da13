// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// witnessesProbed is how many other nodes are probed, if any gateway is. When none of the
// gateways answers, their answers say that the network of this node works.
const witnessesProbed = 2

type targetParams struct {
	cell.In

	Targets   statedb.RWTable[*tables.ProbeTarget]
	Policies  statedb.Table[*tables.EgressPolicy]
	Pools     statedb.Table[*tables.EgressIPPool]
	IPs       statedb.Table[*tables.EgressIP]
	Voters    statedb.Table[*tables.EgressVoters]
	Nodes     statedb.Table[*tables.Node]
	LocalNode tables.LocalNode
}

// allTargets is the one key of the rule: which nodes are witnesses depends on all others.
type allTargets struct{}

// deriveTargets derives which nodes this node probes: those that it may elect as gateways or for
// addresses of pools, and some witnesses.
func deriveTargets(p derive.Params, t targetParams) error {
	return derive.Register(p, t.declare())
}

func (t *targetParams) declare() derive.Rule[allTargets] {
	return derive.Rule[allTargets]{
		Outputs: []statedb.TableMeta{t.Targets},
		Inputs: []derive.Input[allTargets]{
			derive.FromIf(t.Policies, hasOtherGateways, markTargets[*tables.EgressPolicy]),
			derive.FromIf(t.Pools, (*tables.EgressIPPool).ChangesAddresses,
				markTargets[*tables.EgressIPPool]),
			derive.From(t.Voters, markTargets[*tables.EgressVoters]),
			// It follows from the answers to probes.
			derive.Feedback(derive.FromIf(t.IPs,
				func(old, new *tables.EgressIP) bool { return old.Node != new.Node },
				markTargets[*tables.EgressIP])),
			derive.FromIf(t.Nodes, isOtherCandidate, markTargets[*tables.Node]),
		},
		Compute: t.compute,
	}
}

func markTargets[Row any](_ statedb.ReadTxn, _ Row, mark func(allTargets)) { mark(allTargets{}) }

func hasOtherGateways(old, new *tables.EgressPolicy) bool {
	return !slices.Equal(old.Gateways, new.Gateways)
}

func isOtherCandidate(old, new *tables.Node) bool {
	return old.Ready != new.Ready || old.UnderlayIP() != new.UnderlayIP() ||
		!maps.Equal(old.Labels, new.Labels)
}

func (t *targetParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []allTargets, _ func(allTargets),
) error {
	if len(keys) == 0 {
		return nil
	}
	wanted := t.wanted(in)
	for _, old := range statedb.Collect(t.Targets.All(out)) {
		if wanted[old.Node] == nil {
			if err := derive.Delete(out, t.Targets, old); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		old, _, found := t.Targets.Get(out, tables.ProbeTargetByNode(name))
		if found && old.Equal(wanted[name]) {
			continue
		}
		if err := derive.Insert(out, t.Targets, wanted[name]); err != nil {
			return err
		}
	}
	return nil
}

// wanted returns the targets by node.
func (t *targetParams) wanted(in statedb.ReadTxn) map[string]*tables.ProbeTarget {
	targets := map[string]*tables.ProbeTarget{}
	for _, selector := range t.selectors(in) {
		ready, unready := 0, 0
		for node := range t.Nodes.All(in) {
			if ready == tables.MaxCandidates {
				break
			}
			if !node.UnderlayIP().IsValid() || !selector.Matches(node.Labels) {
				continue
			}
			// A node that is not ready is probed too: that it is lost must not be forgotten when
			// its Node is ready before its programs are.
			if node.Ready {
				ready++
			} else if unready++; unready > tables.MaxCandidates {
				continue
			}
			if node.Name != t.LocalNode.Name {
				targets[node.Name] = &tables.ProbeTarget{Node: node.Name, Addr: node.UnderlayIP()}
			}
		}
	}
	for _, selectors := range t.poolSelectors(in) {
		nodes := poolNodes(statedb.ToSeq(t.Nodes.All(in)), func(n *tables.Node) bool {
			return selectors[0].Matches(n.Labels) && selectors[1].Matches(n.Labels)
		})
		for _, node := range nodes {
			if node.Name != t.LocalNode.Name {
				targets[node.Name] = &tables.ProbeTarget{Node: node.Name, Addr: node.UnderlayIP()}
			}
		}
	}
	t.markVoted(in, targets)
	if len(targets) > 0 {
		t.addWitnesses(in, targets)
	}
	return targets
}

// markVoted marks the targets that this node votes for.
func (t *targetParams) markVoted(in statedb.ReadTxn, targets map[string]*tables.ProbeTarget) {
	set, _, found := t.Voters.Get(in, tables.EgressVotersByIndex(0))
	if !found || len(set.Of(t.LocalNode.Name)) == 0 {
		return
	}
	for ip := range t.IPs.All(in) {
		if target := targets[ip.Node]; target != nil {
			target.Voted = true
		}
	}
}

// poolSelectors returns the selectors of all pools of addresses that move, each alone and with
// those of the policies that name an address of it.
func (t *targetParams) poolSelectors(in statedb.ReadTxn) (selectors [][2]labels.Selector) {
	pools := statedb.Collect(t.Pools.All(in))
	slices.SortFunc(pools, tables.InOrder[*tables.EgressIPPool])
	wanted := map[[2]string]bool{}
	for _, pool := range pools {
		if !pool.Fixed {
			wanted[[2]string{pool.Nodes, ""}] = true
		}
	}
	for p := range t.Policies.List(in, tables.EgressPoliciesWithEgressIP(true)) {
		for _, g := range p.Gateways {
			at := slices.IndexFunc(pools, func(pool *tables.EgressIPPool) bool {
				return g.Error == "" && g.EgressIP.IsValid() && pool.Contains(g.EgressIP)
			})
			if at >= 0 && !pools[at].Fixed {
				wanted[[2]string{pools[at].Nodes, g.Nodes}] = true
			}
		}
	}
	for texts := range wanted {
		ofPool, err := labels.Parse(texts[0])
		if err != nil {
			continue // the pool has an error
		}
		if ofPolicy, err := labels.Parse(texts[1]); err == nil {
			selectors = append(selectors, [2]labels.Selector{ofPool, ofPolicy})
		}
	}
	return selectors
}

// selectors returns the selectors of all policies' gateways, each once.
func (t *targetParams) selectors(in statedb.ReadTxn) []labels.Selector {
	seen := map[string]bool{}
	var selectors []labels.Selector
	for p := range t.Policies.All(in) {
		for _, g := range p.Gateways {
			if g.Error != "" || seen[g.Nodes] {
				continue
			}
			seen[g.Nodes] = true
			// Its text is canonical. An item that does not parse has an Error.
			if selector, err := labels.Parse(g.Nodes); err == nil {
				selectors = append(selectors, selector)
			}
		}
	}
	return selectors
}

// addWitnesses adds nodes that are not targets. Nodes have different witnesses, so that none is
// probed by all of them.
func (t *targetParams) addWitnesses(in statedb.ReadTxn, targets map[string]*tables.ProbeTarget) {
	type candidate struct {
		node   *tables.Node
		weight uint64
	}
	var best []candidate
	for node := range t.Nodes.All(in) {
		if targets[node.Name] != nil || node.Name == t.LocalNode.Name || !node.Ready ||
			!node.UnderlayIP().IsValid() {
			continue
		}
		best = append(best, candidate{node, weightOf(t.LocalNode.Name, node.Name)})
		slices.SortFunc(best, func(a, b candidate) int {
			if a.weight > b.weight {
				return -1
			}
			return 1
		})
		best = best[:min(len(best), witnessesProbed)]
	}
	for _, c := range best {
		targets[c.node.Name] = &tables.ProbeTarget{
			Node: c.node.Name, Addr: c.node.UnderlayIP(), Witness: true,
		}
	}
}
