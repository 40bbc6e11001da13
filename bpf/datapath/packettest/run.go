// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// Verdict is what a program says of a packet.
type Verdict int32

// Verdicts at tcx.
const (
	Next     Verdict = -1
	Drop     Verdict = 2
	Redirect Verdict = 7
)

func (v Verdict) String() string {
	switch v {
	case Next:
		return "next"
	case Drop:
		return "drop"
	case Redirect:
		return "redirect"
	}
	return fmt.Sprintf("verdict %d", int32(v))
}

// Input is a packet for a program.
type Input struct {
	Program string
	Device  string // whose hook it is
	Ingress string // by which it came, at an egress hook; "": it is the host's own
	Packet  []byte
	Mark    uint32
	GSOSize uint32
	GSOSegs uint32
	WireLen uint32
	Overlay netip.Addr // node that sent it, at the overlay device
	VNI     uint32     // of Overlay, VNI unless given
	Node    netip.Addr // address of this node that it was sent to

	Departure uint64 // as of a Result, with Overlay only; 0: at once
}

// Tunnel is a tunnel key.
type Tunnel struct {
	VNI           uint32
	Local, Remote netip.Addr
}

// RedirectKind is by which function a packet was redirected.
type RedirectKind uint8

// Kinds.
const (
	RedirectPlain RedirectKind = 1
	RedirectNeigh RedirectKind = 2
	RedirectPeer  RedirectKind = 3
)

// Result is what became of a packet.
type Result struct {
	Verdict  Verdict
	Out      []byte
	Mark     uint32
	IfIndex  uint32 // of a redirect
	Kind     RedirectKind
	Ingress  bool // of a redirect
	Tunnel   *Tunnel
	Reasons  map[bpf.Reason]int // counted while it ran
	Bytes    map[bpf.Reason]int
	Ways     map[bpf.Reason]bpf.Direction
	Events   []bpf.Event
	Duration time.Duration

	// Departure is the time until which the packet is to wait at a device, in nanoseconds of
	// CLOCK_MONOTONIC; 0: at once.
	Departure uint64
}

// skBuff is struct __sk_buff of linux/bpf.h.
type skBuff struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto uint32
	Priority, IngressIfIndex, IfIndex, TCIndex                                  uint32
	CB                                                                          [5]uint32
	Hash, TCClassID, Data, DataEnd, NAPIID                                      uint32
	Family, RemoteIP4, LocalIP4                                                 uint32
	RemoteIP6, LocalIP6                                                         [4]uint32
	RemotePort, LocalPort, DataMeta                                             uint32
	FlowKeys, Timestamp                                                         uint64
	WireLen, GSOSegs                                                            uint32
	Sock                                                                        uint64
	GSOSize, TimestampType                                                      uint32
	HWTimestamp                                                                 uint64
}

// context returns what the program is to know of the packet beside its bytes.
func (n *Node) context(in Input) skBuff {
	c := skBuff{Mark: in.Mark, IfIndex: n.Index(in.Device), GSOSize: in.GSOSize, GSOSegs: in.GSOSegs, WireLen: in.WireLen}
	if in.Ingress != "" {
		c.IngressIfIndex = n.Index(in.Ingress)
	} else if in.Program != "to_netdev" && in.Program != "to_pod" {
		c.IngressIfIndex = c.IfIndex
	}
	return c
}

// Run runs a program on a packet.
func (n *Node) Run(in Input) (*Result, error) {
	program, err := n.prepare(in)
	if err != nil {
		return nil, err
	}
	before, err := n.metrics()
	if err != nil {
		return nil, err
	}
	var (
		ctx = n.context(in)
		out skBuff
		res = &Result{}
	)
	options := &ebpf.RunOptions{Data: in.Packet, DataOut: n.out, Context: &ctx, ContextOut: &out, Repeat: 1}
	err = n.do(func() error {
		verdict, err := program.Run(options)
		res.Verdict = Verdict(verdict)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", in.Program, err)
	}
	res.Out, res.Mark = append([]byte(nil), options.DataOut...), out.Mark
	res.Departure = out.Timestamp
	if err := n.readObserved(res); err != nil {
		return nil, err
	}
	if err := n.readMetrics(res, before); err != nil {
		return nil, err
	}
	res.Events, err = n.Events()
	return res, err
}

// Empty returns the program that does nothing.
func (n *Node) Empty() *ebpf.Program { return n.programs.Programs["empty"] }

const tunnelIPv6 = 1 // BPF_F_TUNINFO_IPV6

// prepare returns what is to be run, after it has written the tunnel key with
// which the packet comes: that of a packet sent, whose source is this node.
func (n *Node) prepare(in Input) (*ebpf.Program, error) {
	program := n.Program(in.Program + observedSuffix)
	if program == nil {
		return nil, fmt.Errorf("no program %s", in.Program)
	}
	if err := n.Map("observations").Put(uint32(0), make([]byte, n.Map("observations").ValueSize())); err != nil {
		return nil, err
	}
	if !in.Overlay.IsValid() {
		return program, nil
	}
	return n.tunneled(in, program)
}

// tunneled returns what is to be run to have a program run on a packet that comes by the overlay.
func (n *Node) tunneled(in Input, program *ebpf.Program) (*ebpf.Program, error) {
	arrival := struct {
		key   tunnelKey
		flags uint32

		departure uint64
	}{
		key: tunnelKey{
			id: in.VNI, ttl: 64, remote: keyAddress(in.Node), local: keyAddress(in.Overlay),
		},
		departure: in.Departure,
	}
	if in.VNI == 0 {
		arrival.key.id = VNI
	}
	if !in.Node.IsValid() {
		arrival.key.remote = keyAddress(n.Config.Underlay.Addr())
	}
	if in.Overlay.Is6() {
		arrival.flags = tunnelIPv6
	}
	if err := n.Map("arrivals").Put(uint32(0), unsafe.Pointer(&arrival)); err != nil {
		return nil, err
	}
	return n.Program("tunneled"), n.Map("inside").Put(uint32(0), program)
}

// tunnelKey is struct bpf_tunnel_key of linux/bpf.h.
type tunnelKey struct {
	id       uint32
	remote   [16]byte
	tos, ttl uint8
	ext      uint16
	label    uint32
	local    [16]byte
}

// keyAddress returns an address as it is in a tunnel key: IPv4 in host order.
func keyAddress(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		binary.NativeEndian.PutUint32(b[:], binary.BigEndian.Uint32(a.AsSlice()))
		return b
	}
	return a.As16()
}

func addressOfKey(b [16]byte, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.NativeEndian.Uint32(b[:]))))
}

const redirectIngress = 1 << 0

func (n *Node) readObserved(res *Result) error {
	var o observeObservation
	if err := n.Map("observations").Lookup(uint32(0), unsafe.Pointer(&o)); err != nil {
		return err
	}
	if res.Verdict != Redirect {
		return nil
	}
	res.IfIndex, res.Kind = uint32(o.RedirectIfindex), RedirectKind(o.RedirectKind)
	res.Ingress = o.RedirectFlags&redirectIngress != 0
	if o.KeySet != 0 {
		key := (*tunnelKey)(unsafe.Pointer(&o.Key))
		ipv6 := o.KeyFlags&tunnelIPv6 != 0
		res.Tunnel = &Tunnel{VNI: key.id, Local: addressOfKey(key.local, ipv6), Remote: addressOfKey(key.remote, ipv6)}
	}
	return nil
}

// metrics returns the counters, by index.
func (n *Node) metrics() ([]bpf.Metric, error) {
	m := n.Map("sluice_metrics")
	totals := make([]bpf.Metric, m.MaxEntries())
	for i := range totals {
		var cpus []bpf.Metric
		if err := m.Lookup(uint32(i), &cpus); err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		for _, c := range cpus {
			totals[i].Packets += c.Packets
			totals[i].Bytes += c.Bytes
		}
	}
	return totals, nil
}

func (n *Node) readMetrics(res *Result, before []bpf.Metric) error {
	after, err := n.metrics()
	if err != nil {
		return err
	}
	res.Reasons, res.Bytes, res.Ways = map[bpf.Reason]int{}, map[bpf.Reason]int{}, map[bpf.Reason]bpf.Direction{}
	for i := range after {
		if d := after[i].Packets - before[i].Packets; d != 0 {
			reason := bpf.Reason(i / bpf.Directions)
			res.Reasons[reason] += int(d)
			res.Bytes[reason] += int(after[i].Bytes - before[i].Bytes)
			res.Ways[reason] = bpf.Direction(i % bpf.Directions)
		}
	}
	return nil
}

// Events returns the events reported since the last call.
func (n *Node) Events() ([]bpf.Event, error) {
	var events []bpf.Event
	n.events.SetDeadline(time.Unix(1, 0))
	for {
		record, err := n.events.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		if len(record.RawSample) != int(unsafe.Sizeof(bpf.Event{})) {
			return nil, fmt.Errorf("read events: %d bytes", len(record.RawSample))
		}
		events = append(events, *(*bpf.Event)(unsafe.Pointer(&record.RawSample[0])))
	}
}
