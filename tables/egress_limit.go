// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-net/sluice/bpf"
)

// Annotations of an egress policy that limit the bandwidth of its traffic on each gateway, in each
// direction by itself: of all of it, and of each pod's. Values are quantities of bits a second, as
// in the annotation kubernetes.io/egress-bandwidth of pods.
const (
	BandwidthAnnotation    = "sluice.net/bandwidth"
	PodBandwidthAnnotation = "sluice.net/bandwidth-per-pod"
)

// Bandwidth is a limit in bits a second; 0 is none.
type Bandwidth uint64

// String renders the limit as it is given.
func (b Bandwidth) String() string {
	if b == 0 {
		return "-"
	}
	return resource.NewQuantity(int64(b), resource.DecimalSI).String()
}

// bytes is the limit in bytes a second.
func (b Bandwidth) bytes() uint64 { return uint64(b) / 8 }

// EgressLimit is the bandwidth that the traffic of an egress policy may have on this node. An entry
// of sluice_limits.
type EgressLimit struct {
	Cookie uint32 `json:"cookie"` // of the policy in maps, see [bpf.PolicyCookie]
	Policy string `json:"policy"`

	Bandwidth    Bandwidth `json:"bandwidth,omitempty"`    // of all its traffic
	PodBandwidth Bandwidth `json:"podBandwidth,omitempty"` // of each pod's

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (l *EgressLimit) Equal(o *EgressLimit) bool { return sameButStatus(l, o) }

// MapKey is the key in sluice_limits.
func (l *EgressLimit) MapKey() bpf.LimitKey { return bpf.LimitKey{Policy: l.Cookie} }

// MapValue is the value in sluice_limits.
func (l *EgressLimit) MapValue() bpf.LimitValue {
	return bpf.LimitValue{Rate: l.Bandwidth.bytes(), PodRate: l.PodBandwidth.bytes()}
}

// TableHeader implements [statedb.TableWritable].
func (*EgressLimit) TableHeader() []string {
	return []string{"Policy", "Bandwidth", "PerPod", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (l *EgressLimit) TableRow() []string {
	return []string{
		l.Policy, l.Bandwidth.String(), l.PodBandwidth.String(), l.Status.Kind.String(),
		orDash(l.Status.GetError()),
	}
}

var (
	egressLimitIndex = UniqueIndex("cookie", Uint32Keys,
		func(l *EgressLimit) uint32 { return l.Cookie })

	// EgressLimitByCookie queries the limit of the policy that has a cookie.
	EgressLimitByCookie = egressLimitIndex.Query
)

// NewEgressLimitTable creates the table of limits of bandwidth.
var NewEgressLimitTable = Declare("egress-limits", egressLimitIndex)

// IsLimited reports whether the policy limits the bandwidth of its traffic.
func (p *EgressPolicy) IsLimited() bool { return p.Bandwidth != 0 || p.PodBandwidth != 0 }

// bandwidthColumn renders the limits of a policy.
func bandwidthColumn(p *EgressPolicy) string {
	var limits []string
	if p.Bandwidth != 0 {
		limits = append(limits, p.Bandwidth.String())
	}
	if p.PodBandwidth != 0 {
		limits = append(limits, p.PodBandwidth.String()+" per pod")
	}
	return orDash(strings.Join(limits, ", "))
}
