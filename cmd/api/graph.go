// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
	"github.com/sluice-net/sluice/tables/derive"
)

// NodeKind says what a node of the [Graph] is.
type NodeKind string

// The kinds of nodes.
const (
	KindSource  NodeKind = "source"
	KindTable   NodeKind = "table"
	KindMap     NodeKind = "map"
	KindProgram NodeKind = "program"
)

// Graph is the answer of /graph: how data flows from the sources through the
// tables to the maps and the programs, and where it is stuck.
type Graph struct {
	Nodes []GraphNode `json:"nodes"` // in order of kind and name
	Edges []GraphEdge `json:"edges"`
}

// GraphNode is a source, a table, a map or a program.
type GraphNode struct {
	Name string   `json:"name"` // which no other node has
	Kind NodeKind `json:"kind"`

	// Table is where to look for more: the table itself, or that in which the rows
	// tell how the source, the map or the programs are doing; empty if there is none.
	Table string `json:"table,omitempty"`

	Rows int `json:"rows"` // of the table; entries of the map; devices that the program is wanted at
	condition.Counts

	Initialized bool     `json:"initialized"`
	Waits       []string `json:"waits,omitempty"` // for what, if it is not initialized
}

// GraphEdge says that what is in one node becomes what is in another.
type GraphEdge struct {
	From string `json:"from"`
	To   string `json:"to"`
	By   string `json:"by"` // by what: derive, mapsync, load, attach, or what is read

	// Feedback says that From follows from To: what the kernel has decides what may
	// come next.
	Feedback bool `json:"feedback,omitempty"`
}

// What moves data along an edge, if it is no source.
const (
	byDerive  = "derive"  // a rule
	byMapsync = "mapsync" // the reconciler of the map
	byLoad    = "load"    // the program looks up
	byAttach  = "attach"  // the reconciler of attachments
)

// dataflow knows how data flows in this agent: from the modules that say what they
// fill, the rules, the reconcilers of maps and the programs themselves.
type dataflow struct {
	sources  []tables.Source
	rules    *derive.Metrics                   // nil if the agent has none
	control  *mapsync.Control                  // nil if the agent has none
	bpfMaps  statedb.Table[*tables.BPFMap]     // nil if the agent has none
	attached statedb.Table[*tables.Attachment] // nil if the agent has none
	uses     map[string][]string               // maps by program

	mu     sync.Mutex
	counts map[string]tableCounts
}

// tableCounts are the counts of a table at a revision.
type tableCounts struct {
	revision statedb.Revision
	due      time.Time // when they may be counted again
	condition.Counts
}

// Where counting takes long it is for a small share of the time only, however often
// the graph is asked for: of a large table that changes all the time the counts are
// those of a moment ago.
const (
	longCount  = time.Millisecond
	countShare = 20 // one part in so many
)

func newDataflow(p params) (*dataflow, error) {
	uses, err := datapath.MapsOf()
	if err != nil {
		return nil, err
	}
	d := &dataflow{
		sources: p.Sources, rules: p.Rules, control: p.Control, bpfMaps: p.Tables.Maps,
		attached: p.Tables.Attachments, uses: uses, counts: map[string]tableCounts{},
	}
	slices.SortFunc(d.sources, func(a, b tables.Source) int { return strings.Compare(a.Name, b.Name) })
	return d, nil
}

func (h *handlers) graph(w http.ResponseWriter, _ *http.Request) {
	writeCompact(w, h.flow.graph(h.db))
}

func (d *dataflow) graph(db *statedb.DB) Graph {
	txn := db.ReadTxn()
	g := Graph{Nodes: []GraphNode{}, Edges: []GraphEdge{}}
	nodes := map[string]GraphNode{} // of tables
	for _, meta := range db.GetTables(txn) {
		nodes[meta.Name()] = d.table(txn, meta)
	}
	for _, s := range d.sources {
		g.addSource(s, nodes)
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		g.Nodes = append(g.Nodes, nodes[name])
	}
	if d.rules != nil {
		for _, rule := range d.rules.All() {
			for _, input := range rule.Inputs() {
				g.Edges = append(
					g.Edges,
					GraphEdge{From: input.Table, To: rule.Table(), By: byDerive, Feedback: input.Feedback},
				)
			}
		}
	}
	if d.control != nil && d.bpfMaps != nil {
		for _, flow := range d.control.Flows() {
			g.addMap(txn, flow, d.bpfMaps)
		}
	}
	if d.attached != nil {
		for _, program := range slices.Sorted(maps.Keys(d.uses)) {
			g.addProgram(
				program, d.uses[program], statedb.Collect(d.attached.All(txn)), nodes["attachments"],
			)
		}
	}
	return g
}

// addSource adds a source, and the tables that it fills. A source is as its tables
// are: it has read what they wait for, or not.
func (g *Graph) addSource(s tables.Source, nodes map[string]GraphNode) {
	source := GraphNode{Name: s.Name, Kind: KindSource, Initialized: true}
	for _, t := range s.Tables {
		by := t.What
		if by == "" {
			by = s.Name
		}
		table := nodes[t.Table.Name()]
		source.Rows += table.Rows
		source.Initialized = source.Initialized && table.Initialized
		source.Waits = append(source.Waits, table.Waits...)
		if t.Table.Name() == "object-sources" {
			source.Table, source.Counts = table.Name, table.Counts
		}
		g.Edges = append(g.Edges, GraphEdge{From: s.Name, To: table.Name, By: by})
	}
	g.Nodes = append(g.Nodes, source)
}

// addMap adds a map, between what it shall hold and what it holds.
func (g *Graph) addMap(
	txn statedb.ReadTxn, flow mapsync.Flow, bpfMaps statedb.Table[*tables.BPFMap],
) {
	node := GraphNode{Name: flow.Map, Kind: KindMap, Table: bpfMaps.Name()}
	if row, _, found := bpfMaps.Get(txn, tables.BPFMapByName(flow.Map)); found {
		node.Rows, node.Pending, node.Errors = row.Entries, row.Pending+row.Waiting, row.Failed
	}
	node.Initialized = !slices.Contains(bpfMaps.PendingInitializers(txn), flow.Map)
	if !node.Initialized {
		node.Waits = []string{"the first pass"}
	}
	g.Nodes = append(g.Nodes, node)
	g.Edges = append(g.Edges,
		GraphEdge{From: flow.Desired, To: flow.Map, By: byMapsync}, GraphEdge{
			From: flow.Map, To: flow.Mirror, By: byMapsync,
		})
}

// addProgram adds a program, which looks up in some maps and runs where it is attached.
func (g *Graph) addProgram(
	name string, uses []string, attached []*tables.Attachment, table GraphNode,
) {
	node := GraphNode{
		Name: name, Kind: KindProgram, Table: table.Name, Initialized: table.Initialized,
		Waits: table.Waits,
	}
	for _, a := range attached {
		if a.Program.String() == name {
			node.Rows++
			node.Add(condition.Of(a))
		}
	}
	g.Nodes = append(g.Nodes, node)
	g.Edges = append(g.Edges, GraphEdge{From: table.Name, To: name, By: byAttach})
	for _, m := range uses {
		if slices.ContainsFunc(
			g.Nodes, func(n GraphNode) bool { return n.Kind == KindMap && n.Name == m },
		) {
			g.Edges = append(g.Edges, GraphEdge{From: m, To: name, By: byLoad})
		}
	}
}

func (d *dataflow) table(txn statedb.ReadTxn, meta statedb.TableMeta) GraphNode {
	initialized, _ := meta.Initialized(txn)
	return GraphNode{
		Name: meta.Name(), Kind: KindTable, Table: meta.Name(),
		Rows: meta.NumObjects(txn), Counts: d.count(txn, meta),
		Initialized: initialized, Waits: meta.PendingInitializers(txn),
	}
}

// count counts the rows of a table by condition, unless that was done a moment ago.
func (d *dataflow) count(txn statedb.ReadTxn, meta statedb.TableMeta) condition.Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	revision := meta.Revision(txn)
	last, found := d.counts[meta.Name()]
	begin := time.Now()
	if found && (last.revision == revision || begin.Before(last.due)) {
		return last.Counts
	}
	c := tableCounts{revision: revision}
	for row := range (statedb.AnyTable{Meta: meta}).All(txn) {
		c.Add(condition.Of(row))
	}
	if took := time.Since(begin); took > longCount {
		c.due = begin.Add(countShare * took)
	}
	d.counts[meta.Name()] = c
	return c.Counts
}
