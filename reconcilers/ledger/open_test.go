// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/tables"
)

// withTranslations gives a ledger maps of translations, with room for so many entries.
func (k *kernel) withTranslations(room uint32) {
	k.Helper()
	spec, err := datapath.Spec()
	require.NoError(k, err)
	open := func(name string) *ebpf.Map {
		s := spec.Maps[name]
		s.Pinning, s.MaxEntries = ebpf.PinNone, room
		m, err := ebpf.NewMap(s)
		require.NoError(k, err)
		k.Cleanup(func() { m.Close() })
		return m
	}
	k.NAT4, k.NAT6 = open(natmap.Name4), open(natmap.Name6)
}

// repliesOf is the key of the record for replies of a translation.
func repliesOf(r *bpf.LedgerRecord) ctmap.Tuple {
	return ctmap.Tuple{
		Source: addrPort(r.Remote, r.RemotePort), Destination: addrPort(r.Egress, r.EgressPort),
		Protocol: r.Protocol, Flags: ctmap.In,
	}
}

// put has the kernel have a translation, and drop has it evict it.
func (k *kernel) put(r bpf.LedgerRecord) {
	k.Helper()
	key := repliesOf(&r)
	if key.Is6() {
		require.NoError(k, k.NAT6.Put(natmap.NewKey6(key), natmap.Entry6{
			Created: r.Began, Used: r.Used, Addr: r.Pod, Port: r.PodPort,
		}))
		return
	}
	require.NoError(k, k.NAT4.Put(natmap.NewKey4(key), natmap.Entry4{
		Created: r.Began, Used: r.Used, Addr: r.Pod.Addr().As4(), Port: r.PodPort,
	}))
}

func (k *kernel) drop(r bpf.LedgerRecord) {
	k.Helper()
	if key := repliesOf(&r); key.Is6() {
		require.NoError(k, k.NAT6.Delete(natmap.NewKey6(key)))
	} else {
		require.NoError(k, k.NAT4.Delete(natmap.NewKey4(key)))
	}
}

// nth is a record of a begin, at so many seconds, with a port of its own.
func nth(port byte, at uint64) bpf.LedgerRecord {
	return raw(bpf.LedgerBegin, time.Now(), time.Now(), func(r *bpf.LedgerRecord) {
		r.Time, r.Began, r.EgressPort[1] = at*1e9, at*1e9, port
	})
}

func nth6(port byte, at uint64) bpf.LedgerRecord {
	r := nth(port, at)
	r.Pod = bpf.AddressFrom(netip.MustParseAddr("fd00::5"))
	r.Egress = bpf.AddressFrom(netip.MustParseAddr("2001:db8::7"))
	r.Remote = bpf.AddressFrom(netip.MustParseAddr("2001:db8::9"))
	return r
}

var webOwner = owner{tables.Name{Namespace: "shop", Name: "web-1"}, "node-1"}

func foundOwner(bpf.Address, uint64) owner { return webOwner }

// endsOf returns what a set says has ended, once all ends up to a time in seconds were read.
func endsOf(o *openSet, readTo uint64) (all []string) {
	return events(o.ended(readTo*1e9, batchSize, clock{}))
}

// TestCompare: a translation that the kernel has no more, and that does not end otherwise, was
// evicted.
func TestCompare(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(1024)
	type maker func(byte, uint64) bpf.LedgerRecord
	for name, nth := range map[string]maker{"IPv4": nth, "IPv6": nth6} {
		t.Run(name, func(t *testing.T) {
			o := newOpenSet(&k.Ledger)
			stays, evicted, ends := nth(1, 100), nth(2, 100), nth(3, 100)
			evicted.Used = 104
			for _, r := range []bpf.LedgerRecord{stays, evicted, ends} {
				k.put(r)
				o.begin(&r, webOwner)
			}
			require.NoError(t, o.compare(110e9, 110e9, 0, foundOwner))
			require.Empty(t, endsOf(o, 200))
			k.drop(evicted)
			k.drop(ends)
			require.NoError(t, o.compare(120e9, 120e9, 0, foundOwner))
			require.Empty(t, endsOf(o, 121), "an end may be on its way")
			o.end(&ends)
			records := o.ended(122e9, batchSize, clock{})
			require.Equal(t, []string{"end evicted web-1"}, events(records))
			require.EqualValues(t, 100e9, records[0].ID)
			require.Equal(t, clock{}.at(120e9), records[0].Time)
			require.Equal(t, clock{}.at(100e9), records[0].Began)
			require.Equal(t, clock{}.at(104e9), records[0].LastUsed, "as found before")
			require.Equal(t, addrPort(evicted.Egress, evicted.EgressPort), records[0].Egress)
			require.Equal(t, addrPort(evicted.Remote, evicted.RemotePort), records[0].Destination)
			require.Equal(t, addrPort(evicted.Pod, evicted.PodPort), records[0].PodAddress)
			require.Empty(t, endsOf(o, 1000))
			require.Len(t, o.open, 1)
			k.drop(stays)
		})
	}
}

// TestCompareSamePort: if another translation begins with the port of one that was evicted, the
// time of its begin is the end of that, whether an end of it is still to come or not.
func TestCompareSamePort(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(1024)
	o := newOpenSet(&k.Ledger)
	first, second, third := nth(1, 100), nth(1, 113), nth(1, 117)
	k.put(first)
	o.begin(&first, webOwner)
	require.NoError(t, o.compare(110e9, 110e9, 0, foundOwner))
	k.put(third)
	o.begin(&second, webOwner)
	o.begin(&third, webOwner)
	o.end(&second) // comes late
	require.NoError(t, o.compare(120e9, 120e9, 0, foundOwner))
	records := o.ended(130e9, batchSize, clock{})
	require.Equal(t, []string{"end evicted web-1"}, events(records))
	require.EqualValues(t, 100e9, records[0].ID)
	require.Equal(t, clock{}.at(113e9), records[0].Time)
}

// TestBeginLate: a begin that comes after the next one with the same port does not end that.
func TestBeginLate(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(1024)
	o := newOpenSet(&k.Ledger)
	first, second := nth(1, 100), nth(1, 113)
	require.NoError(t, o.compare(99e9, 99e9, 0, foundOwner))
	k.put(second)
	o.begin(&second, webOwner)
	o.begin(&first, webOwner)
	require.NoError(t, o.compare(120e9, 120e9, 0, foundOwner))
	records := o.ended(130e9, batchSize, clock{})
	require.Equal(t, []string{"end evicted web-1"}, events(records))
	require.EqualValues(t, 100e9, records[0].ID)
	require.Equal(t, clock{}.at(113e9), records[0].Time)
	require.Len(t, o.open, 1)
}

// TestCompareUnknown: if records did not fit, the end of what is absent may be among them.
func TestCompareUnknown(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(1024)
	o := newOpenSet(&k.Ledger)
	one, other, last := nth(1, 100), nth(2, 100), nth(3, 100)
	for _, r := range []bpf.LedgerRecord{one, other, last} {
		k.put(r)
		o.begin(&r, webOwner)
	}
	require.NoError(t, o.compare(110e9, 110e9, 5, foundOwner))
	k.drop(one)
	require.NoError(t, o.compare(120e9, 120e9, 6, foundOwner))
	require.Equal(t, []string{"end unknown web-1"}, endsOf(o, 130))
	k.drop(other)
	require.NoError(t, o.compare(130e9, 130e9, 6, foundOwner))
	require.Equal(t, []string{"end evicted web-1"}, endsOf(o, 140))
	k.drop(last)
	require.NoError(t, o.compare(140e9, 140e9, 6, foundOwner))
	require.NoError(t, o.compare(141e9, 141e9, 7, foundOwner)) // it did not fit a moment later
	require.Equal(t, []string{"end unknown web-1"}, endsOf(o, 150))
}

// TestCompareTakesIn: what has begun before there was a ledger, or whose begin is missing, has an
// end.
func TestCompareTakesIn(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(1024)
	o := newOpenSet(&k.Ledger)
	r := nth(1, 100)
	k.put(r)
	require.NoError(t, o.compare(110e9, 101e9, 0, foundOwner))
	require.Empty(t, o.open, "its begin may come")
	require.NoError(t, o.compare(110e9, 110e9, 0, foundOwner))
	records := o.begun(batchSize, clock{})
	require.Equal(t, []string{"begin found web-1"}, events(records))
	require.Equal(t, clock{}.at(100e9), records[0].Time)
	require.EqualValues(t, 100e9, records[0].ID)
	require.Empty(t, o.begun(batchSize, clock{}))
	o.begin(&r, owner{}) // comes late
	require.Len(t, o.open, 1)
	k.drop(r)
	require.NoError(t, o.compare(120e9, 120e9, 0, foundOwner))
	require.Equal(t, []string{"end evicted web-1"}, endsOf(o, 130))
}

// TestOpenBounded: what is kept is bounded by the room of the maps, however many translations
// begin.
func TestOpenBounded(t *testing.T) {
	k := newKernel(t, 1<<12)
	k.withTranslations(64)
	o := newOpenSet(&k.Ledger)
	began, ended := 0, 0
	for i := range 10000 {
		r := nth(byte(i), 100)
		r.PodPort = [2]byte{byte(i >> 8), byte(i)}
		r.RemotePort = [2]byte{byte(i >> 16), byte(i >> 8)}
		k.put(r)
		o.begin(&r, webOwner)
		began++
		if o.due() {
			require.NoError(t, o.compare(uint64(i), 0, 0, foundOwner))
		}
		ended += len(o.ended(0, batchSize, clock{}))
		require.LessOrEqual(t, len(o.open)+len(o.order), 2*o.room)
	}
	require.Equal(t, began, ended+len(o.open)+len(o.absent))
	require.NotZero(t, ended)
}
