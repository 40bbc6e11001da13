// SPDX-License-Identifier: Apache-2.0

// Package tampering tells of what something other than the agent has changed in the kernel: in
// the table tampering, the log, a metric, and an Event on the Node.
//
//	audits of maps, guards of links and pins ──► tampering ──► log, metric, Event
package tampering

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
)

// Cell provides the [Recorder], and the table tampering.
var Cell = cell.Module(
	"tampering",
	"What others have changed in the kernel",

	tables.Own(tables.NewTamperingTable),
	cell.Provide(
		newRecorder,
		func(table statedb.RWTable[*tables.Tampering]) tables.SourceOut {
			return tables.NewSourceOut("guards", table)
		},
	),
)

// eventReason is the reason of Events.
const eventReason = "Tampered"

// Recorder takes what was found. It is safe for concurrent use.
type Recorder struct {
	log    *slog.Logger
	db     *statedb.DB
	table  statedb.RWTable[*tables.Tampering]
	events record.EventRecorder // nil without an API server
	node   string
	count  *prometheus.CounterVec
}

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Table      statedb.RWTable[*tables.Tampering]
	Node       tables.LocalNode
	Events     record.EventRecorder  `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
}

func newRecorder(p params) (*Recorder, error) {
	r := &Recorder{
		log: p.Log, db: p.DB, table: p.Table, events: p.Events, node: p.Node.Name,
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_tampering_total",
			Help: "What something else has changed in the kernel, by map or program, and kind.",
		}, []string{"object", "kind"}),
	}
	return r, tables.RegisterMetrics(p.Registerer, r.count)
}

// Watch names the kinds of changes that an object, a map or program, is watched for. They are
// counted from zero, so that the first one is a rise.
func (r *Recorder) Watch(object string, kinds ...string) {
	if r == nil {
		return
	}
	for _, kind := range kinds {
		r.count.WithLabelValues(object, kind)
	}
}

// Found tells that something was changed so many times: of an object, which is a map or program.
// The example is one of these changes, and what is done about it.
func (r *Recorder) Found(object, kind string, count int, example string) {
	if r == nil || count == 0 {
		return
	}
	r.count.WithLabelValues(object, kind).Add(float64(count))
	r.log.Warn("Something else has changed what the agent has in the kernel",
		"object", object, "kind", kind, "count", count, "example", example)
	if r.events != nil {
		r.events.Eventf(NodeReference(r.node), corev1.EventTypeWarning, eventReason,
			"%s: %d %s: %s", object, count, kind, example)
	}
	wtxn := r.db.WriteTxn(r.table)
	defer wtxn.Abort()
	row := &tables.Tampering{
		Object: object, Kind: kind, Count: uint64(count), Last: time.Now(), Example: example,
	}
	id := tables.TamperingID{Object: object, Kind: kind}
	if former, _, found := r.table.Get(wtxn, tables.TamperingByID(id)); found {
		row.Count += former.Count
	}
	if _, _, err := r.table.Insert(wtxn, row); err != nil {
		r.log.Error("Cannot tell of tampering", "error", err)
		return
	}
	wtxn.Commit()
}

// NodeReference refers to a Node as the kubelet's Events do, so that kubectl describe shows them.
func NodeReference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name),
	}
}
