// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb/index"
)

// EgressTraffic is what this node, as a gateway, has translated for an egress policy with an egress
// address: of flows that the policy decided when they began. Bytes are of frames, and several
// segments that the kernel handles as one packet count as one.
type EgressTraffic struct {
	Policy   string     `json:"policy"`
	EgressIP netip.Addr `json:"egressIP"`

	SentPackets     uint64 `json:"sentPackets"` // by pods
	SentBytes       uint64 `json:"sentBytes"`
	ReceivedPackets uint64 `json:"receivedPackets"` // by pods, in answer
	ReceivedBytes   uint64 `json:"receivedBytes"`
}

// TableHeader implements [statedb.TableWritable].
func (*EgressTraffic) TableHeader() []string {
	return []string{
		"Policy", "EgressIP", "SentPackets", "SentBytes", "ReceivedPackets", "ReceivedBytes",
	}
}

// TableRow implements [statedb.TableWritable].
func (t *EgressTraffic) TableRow() []string {
	row := []string{t.Policy, t.EgressIP.String()}
	for _, n := range []uint64{t.SentPackets, t.SentBytes, t.ReceivedPackets, t.ReceivedBytes} {
		row = append(row, strconv.FormatUint(n, 10))
	}
	return row
}

// EgressTrafficKey is the key of an [EgressTraffic].
type EgressTrafficKey struct {
	Policy   string
	EgressIP netip.Addr
}

// Key returns the key of the row.
func (t *EgressTraffic) Key() EgressTrafficKey { return EgressTrafficKey{t.Policy, t.EgressIP} }

func (k EgressTrafficKey) key() index.Key {
	return append(append(index.String(k.Policy), 0), index.NetIPAddr(k.EgressIP)...)
}

var (
	egressTrafficKey = UniqueIndex("key", KeysOf(EgressTrafficKey.key, index.FromString),
		(*EgressTraffic).Key)

	// EgressTrafficByKey queries what has left with an address for a policy.
	EgressTrafficByKey = egressTrafficKey.Query
)

// NewEgressTrafficTable creates the table of translated traffic.
var NewEgressTrafficTable = Declare("egress-traffic", egressTrafficKey)
