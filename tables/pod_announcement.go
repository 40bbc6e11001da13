// SPDX-License-Identifier: Apache-2.0

package tables

import "net/netip"

// PodAnnouncement is an EndpointSlice in which this node announces addresses of its
// pods, and its own that its Node object does not have, one for each family. The status says
// whether the API server has it.
type PodAnnouncement struct {
	Slice Name       `json:"slice"`
	Pods  []PodAddrs `json:"pods,omitempty"`

	// Addrs are those of the node.
	Addrs []netip.Addr `json:"addrs,omitempty"`

	Reconciled `yaml:",inline"`
}

// TableHeader implements [statedb.TableWritable].
func (*PodAnnouncement) TableHeader() []string {
	return []string{"Slice", "Pods", "Addresses", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (a *PodAnnouncement) TableRow() []string {
	return []string{a.Slice.String(), listColumn(stringsOf(a.Pods), ", "),
		listColumn(stringsOf(a.Addrs), ", "), a.Status.Kind.String(),
		orDash(a.Status.GetError())}
}

var (
	podAnnouncementIndex = UniqueIndex("slice", NameKeys,
		func(a *PodAnnouncement) Name { return a.Slice })

	// PodAnnouncementBySlice queries an announcement by the name of its slice.
	PodAnnouncementBySlice = podAnnouncementIndex.Query
)

// NewPodAnnouncementTable creates the table of what this node announces.
var NewPodAnnouncementTable = Declare("pod-announcements", podAnnouncementIndex)
