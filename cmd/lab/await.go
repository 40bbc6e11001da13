// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// AwaitPolicy waits until all rules of an egress policy are in the kernel's maps.
func (a *Agent) AwaitPolicy(ctx context.Context, policy string) error {
	return AwaitRows(ctx, a, "egress-policy-status", func(rows []tables.EgressPolicyStatus) error {
		for _, r := range rows {
			if r.Policy != policy {
				continue
			}
			if r.Programmed < r.Rules {
				return fmt.Errorf("%d of %d rules of policy %s are programmed", r.Programmed, r.Rules, policy)
			}
			return nil
		}
		return fmt.Errorf("policy %s is unknown", policy)
	})
}

// AwaitSources waits until the kernel has, or with selected=false has not, routes for pods, on
// their own nodes and on the other nodes given.
func (c *Cluster) AwaitSources(
	ctx context.Context, selected bool, gateways []*Node, pods ...*Pod,
) error {
	for _, p := range pods {
		for _, n := range append([]*Node{p.Node}, gateways...) {
			if err := n.Agent.awaitRoute(ctx, p, selected); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Agent) awaitRoute(ctx context.Context, p *Pod, selected bool) error {
	return a.Await(ctx, "the route of "+p.Name, func(ctx context.Context) error {
		routes, err := Rows[MapRow](ctx, a, "map-routes")
		if err != nil {
			return err
		}
		pods, err := Rows[MapRow](ctx, a, "map-pods")
		if err != nil {
			return err
		}
		routed, found := map[uint32]bool{}, map[string]bool{}
		for _, r := range routes {
			routed[number(r.Key["Subject"])] = true
		}
		for _, r := range pods {
			found[fmt.Sprint(r.Key["Addr"])] = routed[number(r.Value["Subject"])]
		}
		for _, addr := range []string{p.IPv4.String(), p.IPv6.String()} {
			if found[addr] != selected {
				return fmt.Errorf("the kernel has a route for %s: %t", addr, found[addr])
			}
		}
		return nil
	})
}

// MapRow is an entry of a kernel map: a row of a table map-*.
type MapRow struct {
	Key   map[string]any `json:"key"`
	Value map[string]any `json:"value"`
	Error string         `json:"error"`
}

// number is a number of a row.
func number(v any) uint32 {
	f, _ := v.(float64) // as JSON has them
	return uint32(f)
}

// AwaitGateways waits until, in the kernel's maps, every destination of a policy
// leads to groups over all of whose buckets just these gateways are spread; none
// means that traffic is dropped.
func (a *Agent) AwaitGateways(ctx context.Context, gateways ...*Node) error {
	want := map[string]bool{}
	for _, n := range gateways {
		want[n.Internal().String()] = true
	}
	return a.Await(ctx, "gateways are elected", func(ctx context.Context) error {
		rules, err := Rows[MapRow](ctx, a, "map-egress")
		if err != nil {
			return err
		}
		buckets, err := Rows[MapRow](ctx, a, "map-gateways")
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for _, rule := range rules {
			group, count := number(rule.Value["Group"]), 0
			for _, b := range buckets {
				if number(b.Key["Group"]) == group {
					count++
					got[fmt.Sprint(b.Value["Gateway"])] = true
				}
			}
			if group != bpf.GroupExcluded && count != bpf.GatewayBuckets {
				return fmt.Errorf("group %d has %d buckets", group, count)
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf(
				"gateways are %v, not %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)),
			)
		}
		return nil
	})
}

// AwaitExit waits until packets can leave with an egress address of the node. A node that becomes a
// gateway attaches programs to the address's device before.
func (a *Agent) AwaitExit(ctx context.Context, egress netip.Addr) error {
	return AwaitRows(ctx, a, "egress-exits", func(rows []tables.EgressExit) error {
		for _, r := range rows {
			if r.Addr != egress {
				continue
			}
			if r.Status.Kind != reconciler.StatusKindDone {
				return fmt.Errorf("egress address %s: %s", egress, r.Status)
			}
			return nil
		}
		return fmt.Errorf("%s is no egress address", egress)
	})
}

// AwaitRule waits until the kernel's maps have a destination of a policy, or
// have it as excluded.
func (a *Agent) AwaitRule(ctx context.Context, destination netip.Prefix, excluded bool) error {
	what := fmt.Sprintf("a rule for %s is programmed", destination)
	return a.Await(ctx, what, func(ctx context.Context) error {
		text, err := a.Table(ctx, "map-egress")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == destination.String() &&
				(f[2] == "excluded") == excluded {
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// AwaitAttached waits until the kernel knows these pods of the node, and all
// programs are attached that are to be.
func (a *Agent) AwaitAttached(ctx context.Context, pods ...*Pod) error {
	if err := AwaitRows(ctx, a, "map-pods", func(rows []MapRow) error {
		known := map[string]bool{}
		for _, r := range rows {
			known[fmt.Sprint(r.Key["Addr"])] = number(r.Value["IfIndex"]) != 0
		}
		for _, p := range pods {
			if !known[p.IPv4.String()] || !known[p.IPv6.String()] {
				return fmt.Errorf("the kernel does not know %s", p.Name)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return AwaitRows(ctx, a, "attachments", func(rows []attachment) error {
		attached := map[string]bool{}
		for _, r := range rows {
			if r.Status.Kind != reconciler.StatusKindDone {
				return fmt.Errorf("program %s, device %q: %s", r.Program, r.Device, r.Status)
			}
			attached[r.Device] = true
		}
		for _, p := range pods {
			if !attached[p.HostDevice] {
				return fmt.Errorf("nothing is attached to %s of %s", p.HostDevice, p.Name)
			}
		}
		return nil
	})
}

// attachment is a row of table attachments.
type attachment struct {
	Device  string            `json:"device"`
	Program string            `json:"program"`
	Status  reconciler.Status `json:"status"`
}

// settling are the tables whose rows say themselves whether the kernel has them.
var settling = []string{
	"cluster-nodes", "covered-prefixes", "datapath-config", "egress-exits", "egress-gateways",
	"egress-limits", "egress-rules", "frontends", "ipcache", "members", "pod-devices", "pods",
	"policy-entries", "subject-routes", "subjects", "verdicts",
}

// AwaitSettled waits until nothing waits for the kernel, and nothing failed.
func (a *Agent) AwaitSettled(ctx context.Context) error {
	tables := settling // the numbers of bpf-maps are a moment older
	if len(a.Command) > 0 {
		tables = nil // another version has others
	}
	for _, table := range tables {
		err := AwaitRows(ctx, a, table, func(rows []struct {
			Status reconciler.Status `json:"status"`
		}) error {
			for _, r := range rows {
				if r.Status.Kind != reconciler.StatusKindDone {
					return fmt.Errorf("a row is %s", r.Status)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return AwaitRows(ctx, a, "bpf-maps", func(rows []struct {
		Name                     string
		Pending, Waiting, Failed int
	}) error {
		for _, r := range rows {
			if r.Pending+r.Waiting+r.Failed > 0 {
				return fmt.Errorf(
					"map %s: %d pending, %d waiting, %d failed", r.Name, r.Pending, r.Waiting, r.Failed,
				)
			}
		}
		return nil
	})
}
