// SPDX-License-Identifier: Apache-2.0

package tables

// PodAnnouncement is an EndpointSlice in which this node announces addresses of its
// pods, one for each family. The status says whether the API server has it.
type PodAnnouncement struct {
	Slice Name       `json:"slice"`
	Pods  []PodAddrs `json:"pods,omitempty"`

	Reconciled `yaml:",inline"`
}

// TableHeader implements [statedb.TableWritable].
func (*PodAnnouncement) TableHeader() []string { return []string{"Slice", "Pods", "Status", "Error"} }

// TableRow implements [statedb.TableWritable].
func (a *PodAnnouncement) TableRow() []string {
	return []string{a.Slice.String(), listColumn(stringsOf(a.Pods), ", "), a.Status.Kind.String(),
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
