// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

// PodAnnouncement is an EndpointSlice in which this node announces addresses of its
// pods, one for each family. The status says whether the API server has it.
type PodAnnouncement struct {
	Slice  Name              `json:"slice"`
	Pods   []PodAddrs        `json:"pods,omitempty"`
	Status reconciler.Status `json:"status"`
}

// GetStatus returns the reconciliation status.
func (a *PodAnnouncement) GetStatus() reconciler.Status { return a.Status }

// TableHeader implements [statedb.TableWritable].
func (*PodAnnouncement) TableHeader() []string { return []string{"Slice", "Pods", "Status", "Error"} }

// TableRow implements [statedb.TableWritable].
func (a *PodAnnouncement) TableRow() []string {
	return []string{a.Slice.String(), listColumn(stringsOf(a.Pods), ", "), a.Status.Kind.String(),
		orDash(a.Status.GetError())}
}

var (
	podAnnouncementIndex = statedb.Index[*PodAnnouncement, Name]{
		Name:       "slice",
		FromObject: func(a *PodAnnouncement) index.KeySet { return index.NewKeySet(a.Slice.Key()) },
		FromKey:    Name.Key,
		FromString: index.FromString,
		Unique:     true,
	}

	// PodAnnouncementBySlice queries an announcement by the name of its slice.
	PodAnnouncementBySlice = podAnnouncementIndex.Query
)

// NewPodAnnouncementTable creates the table of what this node announces.
func NewPodAnnouncementTable(db *statedb.DB) (statedb.RWTable[*PodAnnouncement], error) {
	return statedb.NewTable(db, "pod-announcements", podAnnouncementIndex)
}
