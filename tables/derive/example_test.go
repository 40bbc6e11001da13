// SPDX-License-Identifier: Apache-2.0

package derive_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/tables/derive"
)

// Pod is a row of the input.
type Pod struct{ Name, Node string }

func (*Pod) TableHeader() []string { return []string{"Name", "Node"} }
func (p *Pod) TableRow() []string  { return []string{p.Name, p.Node} }

// Load is a row of the output: how many pods a node has.
type Load struct {
	Node string
	Pods int
}

func (*Load) TableHeader() []string { return []string{"Node", "Pods"} }
func (l *Load) TableRow() []string  { return []string{l.Node, fmt.Sprint(l.Pods)} }

func nameIndex[Row any](name string, of func(Row) string, unique bool) statedb.Index[Row, string] {
	return statedb.Index[Row, string]{
		Name:       name,
		FromObject: func(row Row) index.KeySet { return index.NewKeySet(index.String(of(row))) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     unique,
	}
}

// How many pods each node has, kept up to date: a pod that is added, moved or
// deleted has one or two nodes counted anew, and no others.
func Example() {
	var (
		podName  = nameIndex("name", func(p *Pod) string { return p.Name }, true)
		podNode  = nameIndex("node", func(p *Pod) string { return p.Node }, false)
		loadNode = nameIndex("node", func(l *Load) string { return l.Node }, true)

		db    *statedb.DB
		pods  statedb.RWTable[*Pod]
		loads statedb.RWTable[*Load]
	)
	deriveLoads := func(p derive.Params) error {
		db = p.DB
		pods = statedb.MustNewTable(db, "pods", podName, podNode)
		loads = statedb.MustNewTable(db, "loads", loadNode)
		_, err := derive.Register(p, derive.Rule[string, *Load]{
			Output: loads,
			Inputs: []derive.Input[string]{
				derive.From(pods, func(_ statedb.ReadTxn, pod *Pod, affect func(node string)) { affect(pod.Node) }),
			},
			Existing: func(txn statedb.ReadTxn, node string) iter.Seq2[*Load, statedb.Revision] {
				return loads.List(txn, loadNode.Query(node))
			},
			Rows: func(txn statedb.ReadTxn, node string) []*Load {
				count := len(statedb.Collect(pods.List(txn, podNode.Query(node))))
				if count == 0 {
					return nil
				}
				return []*Load{{Node: node, Pods: count}}
			},
			Equal: func(a, b *Load) bool { return *a == *b },
		})
		return err
	}

	log := slog.New(slog.DiscardHandler)
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("example", "Example",
		cell.Provide(job.Registry.NewGroup, derive.NewMetrics),
		cell.Invoke(deriveLoads)))
	if err := h.Start(log, context.Background()); err != nil {
		panic(err)
	}
	defer h.Stop(log, context.Background())

	set := func(changed ...*Pod) {
		wtxn := db.WriteTxn(pods)
		for _, pod := range changed {
			pods.Insert(wtxn, pod)
		}
		wtxn.Commit()
	}
	show := func(node string, until int) {
		for {
			load, _, watch, _ := loads.GetWatch(db.ReadTxn(), loadNode.Query(node))
			if load != nil && load.Pods == until {
				fmt.Println(load.Node, load.Pods)
				return
			}
			<-watch
		}
	}
	set(&Pod{"web-1", "a"}, &Pod{"web-2", "a"}, &Pod{"db", "b"})
	show("a", 2)
	set(&Pod{"web-2", "b"})
	show("b", 2)
	// Output:
	// a 2
	// b 2
}
