// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

// egressBGPPeer is an EgressBGPPeer.
type egressBGPPeer struct {
	object
	Spec struct {
		NodeSelector     *metav1.LabelSelector `json:"nodeSelector"`
		LocalASN         *int64                `json:"localASN"`
		PeerASN          *int64                `json:"peerASN"`
		PeerAddress      string                `json:"peerAddress"`
		PeerPort         *int64                `json:"peerPort"`
		HoldTimeSeconds  *int64                `json:"holdTimeSeconds"`
		KeepaliveSeconds *int64                `json:"keepaliveSeconds"`
		EBGPMultihopTTL  *int64                `json:"ebgpMultihopTTL"`
	} `json:"spec"`
}

// Of BGP sessions, when the object does not say otherwise.
const (
	bgpPort     = 179
	bgpHoldTime = 90 // s, as RFC 4271, section 10, suggests; the keepalive is a third
)

// What the fields hold. A hold time below 3 s is none of RFC 4271; the AS numbers 0, 23456 and
// the last one are reserved by RFC 7607, 6793 and 7300.
const (
	minHoldTime, maxHoldTime = 3, 3600
	maxASN                   = 1<<32 - 2
	transASN                 = 23456
)

// EgressBGPPeerKind returns the kind of the routers that egress addresses are announced to, which
// are read with --egress-bgp, beside [Kinds].
func EgressBGPPeerKind() *Kind {
	return &Kind{
		Group: "sluice.io", Version: "v1alpha1", Kind: "EgressBGPPeer", Resource: "egressbgppeers",
		Guarded: true,
		decoder: decoderFor(egressBGPPeers),
		open: func(t *Tables) *Store {
			return storeOf(t.EgressBGPPeers, byName(tables.EgressBGPPeerByName))
		},
	}
}

func egressBGPPeers(o *egressBGPPeer, name tables.Name, errs *fieldErrors) []*tables.EgressBGPPeer {
	p := &tables.EgressBGPPeer{
		Name: name.Name, UID: o.Metadata.UID, Created: o.created(errs),
		Nodes: selectorText("spec.nodeSelector", o.Spec.NodeSelector, errs),
	}
	p.LocalASN = errs.asn("spec.localASN", o.Spec.LocalASN)
	p.PeerASN = errs.asn("spec.peerASN", o.Spec.PeerASN)
	p.Port = uint16(errs.number("spec.peerPort", o.Spec.PeerPort, bgpPort, 1, 1<<16-1))
	p.MultihopTTL = uint8(errs.number("spec.ebgpMultihopTTL", o.Spec.EBGPMultihopTTL, 1, 1, 255))
	hold := errs.number("spec.holdTimeSeconds", o.Spec.HoldTimeSeconds, bgpHoldTime,
		minHoldTime, maxHoldTime)
	keepalive := errs.number("spec.keepaliveSeconds", o.Spec.KeepaliveSeconds, hold/3, 1, hold/3)
	p.HoldTime = time.Duration(hold) * time.Second
	p.Keepalive = time.Duration(keepalive) * time.Second
	addr, err := parseAddr(o.Spec.PeerAddress)
	switch {
	case err != nil:
		errs.add("spec.peerAddress", err.Error())
	case addr.IsLinkLocalUnicast():
		errs.add("spec.peerAddress", quoted(o.Spec.PeerAddress, "is link-local").Error())
	default:
		p.Addr = addr
	}
	p.Errors = *errs
	return one(p)
}

// number returns the value of a field, or what it is by default. One out of bounds is a mistake,
// and is replaced too.
func (e *fieldErrors) number(field string, value *int64, byDefault, least, most int64) int64 {
	if value == nil {
		return byDefault
	}
	if *value < least || *value > most {
		e.add(field, strconv.FormatInt(*value, 10)+" is out of bounds: want "+
			strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
		return byDefault
	}
	return *value
}

// asn returns the number of an autonomous system, 0 if it is missing or none.
func (e *fieldErrors) asn(field string, value *int64) uint32 {
	if value == nil {
		e.add(field, "required")
		return 0
	}
	n := uint32(e.number(field, value, 0, 1, maxASN))
	if n == transASN {
		e.add(field, strconv.Itoa(transASN)+" is reserved")
		return 0
	}
	return n
}
