// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// maxPorts bounds the ports of an item of toPorts, and the types of one of icmps.
const maxPorts = 40

// ciliumPorts is an item of toPorts. What needs a proxy is only looked at as to
// whether it is there.
type ciliumPorts struct {
	Ports          []ciliumRulePort `json:"ports"`
	Rules          map[string]any   `json:"rules"`
	TerminatingTLS any              `json:"terminatingTLS"`
	OriginatingTLS any              `json:"originatingTLS"`
	ServerNames    any              `json:"serverNames"`
	Listener       any              `json:"listener"`
}

type ciliumRulePort struct {
	Port     string `json:"port"`
	EndPort  int32  `json:"endPort"`
	Protocol string `json:"protocol"`
}

type ciliumICMPs struct {
	Fields []struct {
		Family string `json:"family"`
		Type   any    `json:"type"`
	} `json:"fields"`
}

// portList is what an item says of ports.
type portList struct {
	list        []tables.PolicyPort
	withProxy   []tables.PolicyPort // that need a proxy
	seen        map[seenPort]bool   // which of the two have a port already
	present     bool                // something is said
	bad         bool                // something is left out because of a mistake
	unsupported fieldErrors         // items of toPorts that need a proxy
}

// ciliumPorts reads the ports and ICMP types of an item.
func (r *policyReader) ciliumPorts(field string, in *ciliumTraffic) portList {
	var l portList
	toPorts, icmps := field+".toPorts", field+".icmps"
	l.present = len(in.ToPorts)+len(in.ICMPs) > 0
	if r.bad(toPorts) || r.bad(icmps) {
		l.present, l.bad = true, true
	}
	if len(in.ToPorts) > 0 && len(in.ICMPs) > 0 {
		r.add(icmps, "excludes toPorts")
		l.bad = true
		return l
	}
	for i := range in.ToPorts {
		r.portsItem(&l, indexed(toPorts, i), &in.ToPorts[i])
	}
	for i, item := range in.ICMPs {
		field := indexed(icmps, i)
		if r.badBeside(field, func(name string) bool { return name == "fields" }) {
			l.bad = true
			continue
		}
		field += ".fields"
		for j, f := range bounded(r, &l, field, item.Fields) {
			field := indexed(field, j)
			number, err := icmpType(f.Family, f.Type)
			if err != nil {
				r.add(field, err.Error())
			}
			protocol := uint8(1)
			if f.Family == "IPv6" {
				protocol = 58
			}
			l.add(r, &l.list, field, tables.PolicyPort{Protocol: protocol, First: uint16(number), Last: uint16(number)})
		}
	}
	return l
}

// portsItem reads an item of toPorts.
func (r *policyReader) portsItem(l *portList, field string, in *ciliumPorts) {
	to := &l.list
	if proxy := r.proxy(field, in); proxy != "" {
		l.unsupported.add(field, proxy)
		to = &l.withProxy
	}
	if r.badBeside(field, func(name string) bool { return name == "ports" }) {
		l.bad = true
		return
	}
	for i, p := range bounded(r, l, field+".ports", in.Ports) {
		field := indexed(field+".ports", i)
		for _, port := range r.ciliumPort(field, p) {
			l.add(r, to, field, port)
		}
		l.bad = l.bad || r.bad(field)
	}
}

// bounded returns those items of a list that are used, and reports if there are
// none, or too many.
func bounded[T any](r *policyReader, l *portList, field string, items []T) []T {
	switch {
	case len(items) == 0:
		r.add(field, "required")
		l.bad = true
	case len(items) > maxPorts:
		r.addLate(field, fmt.Sprintf("has %d items, more than %d", len(items), maxPorts))
		l.bad = true
		return items[:maxPorts]
	}
	return items
}

// seenPort is a port of one of the lists.
type seenPort struct {
	tables.PolicyPort
	withProxy bool
}

// add appends a port, unless what it is made from has a mistake.
func (l *portList) add(r *policyReader, to *[]tables.PolicyPort, field string, p tables.PolicyPort) {
	if r.bad(field) {
		l.bad = true
		return
	}
	if l.seen == nil {
		l.seen = map[seenPort]bool{}
	}
	if s := (seenPort{p, to == &l.withProxy}); !l.seen[s] {
		l.seen[s] = true
		*to = append(*to, p)
	}
}

// proxy says what an item of toPorts needs a proxy for, nothing if it needs none.
func (r *policyReader) proxy(field string, in *ciliumPorts) string {
	var needs []string
	for _, name := range []string{"http", "dns"} {
		if in.Rules[name] != nil {
			needs = append(needs, name+" rules")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Rules)) {
		switch {
		case in.Rules[name] == nil, name == "http", name == "dns":
		case name == "kafka", name == "l7", name == "l7proto":
			r.add(field+".rules."+name, "is not supported any more")
		default:
			r.add(field+".rules."+name, "no such field")
		}
	}
	names, isList := in.ServerNames.([]any)
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"serverNames", in.ServerNames != nil && (!isList || len(names) > 0)}, {"terminatingTLS", in.TerminatingTLS != nil},
		{"originatingTLS", in.OriginatingTLS != nil}, {"listener", in.Listener != nil},
	} {
		if f.given {
			needs = append(needs, f.name)
		}
	}
	if len(needs) == 0 {
		return ""
	}
	return "needs a proxy for " + strings.Join(needs, ", ") + ", which is not supported"
}

// ciliumProtocols are the protocols that Cilium has a name for, in capitals. ANY
// are those with ports. ICMP is not among them: its types are named in icmps.
var ciliumProtocols = map[string][]uint8{
	"TCP": {6}, "UDP": {17}, "SCTP": {132}, "ANY": {6, 17, 132}, "": {6, 17, 132},
	"VRRP": {112}, "IGMP": {2}, "GRE": {47}, "IPIP": {4}, "IPV6": {41}, "ESP": {50}, "AH": {51},
}

// ciliumPort returns the ports that one item names, of each protocol.
func (r *policyReader) ciliumPort(field string, in ciliumRulePort) (out []tables.PolicyPort) {
	name := strings.ToUpper(in.Protocol)
	protocols, known := ciliumProtocols[name]
	switch {
	case name == "ICMP" || name == "ICMPV6":
		r.add(field+".protocol", quoted(in.Protocol, "has no ports, use icmps instead of toPorts").Error())
		return nil
	case !known:
		r.add(field+".protocol", strconv.Quote(in.Protocol)+" is no protocol")
		return nil
	}
	port := tables.PolicyPort{Last: 65535}
	if in.Port != "" && in.Port != "0" {
		var err error
		if port, err = portOf(in.Port); err != nil {
			r.add(field+".port", err.Error())
			return nil
		}
	}
	hasPorts := protocols[0] == 6 || protocols[0] == 17 || protocols[0] == 132
	switch {
	case hasPorts:
	case !port.All():
		r.add(field+".port", name+" has no ports")
	case in.EndPort != 0:
		r.add(field+".endPort", name+" has no ranges of ports")
	}
	r.endPort(field+".endPort", &port, int64(in.EndPort))
	for _, protocol := range protocols {
		port.Protocol = protocol
		out = append(out, port)
	}
	return out
}

// endPort makes a port a range, unless its end is 0.
func (r *policyReader) endPort(field string, port *tables.PolicyPort, end int64) {
	switch {
	case end == 0:
	case port.Name != "" || port.All():
		r.add(field, "needs a port with a number")
	case end < int64(port.First) || end > 65535:
		r.add(field, fmt.Sprintf("%d is no port number from %d on", end, port.First))
	default:
		port.Last = uint16(end)
	}
}

// portName is the form of a port's name: letters, digits and single hyphens,
// with at least one letter.
var portName = regexp.MustCompile(`^([a-z0-9]-?)*[a-z](-?[a-z0-9])*$`)

const maxPortName = 15

// portOf parses a port's number, or its name, which is not case sensitive.
func portOf(text string) (tables.PolicyPort, error) {
	if name := strings.ToLower(text); len(name) <= maxPortName && portName.MatchString(name) {
		return tables.PolicyPort{Name: internString(name)}, nil
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || text[0] == '0' || text[0] == '+' {
		return tables.PolicyPort{}, quoted(text, "is neither the number nor the name of a port")
	}
	return tables.PolicyPort{First: uint16(number), Last: uint16(number)}, nil
}

// icmpTypes are the types of ICMP that Cilium has a name for, by family.
var icmpTypes = map[string]map[string]uint8{
	"IPv4": {
		"EchoReply": 0, "DestinationUnreachable": 3, "Redirect": 5, "Echo": 8, "EchoRequest": 8, "RouterAdvertisement": 9,
		"RouterSelection": 10, "TimeExceeded": 11, "ParameterProblem": 12, "Timestamp": 13, "TimestampReply": 14, "Photuris": 40,
		"ExtendedEchoRequest": 42, "ExtendedEcho Request": 42, "ExtendedEchoReply": 43, "ExtendedEcho Reply": 43,
	},
	"IPv6": {
		"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "ParameterProblem": 4, "EchoRequest": 128, "EchoReply": 129,
		"MulticastListenerQuery": 130, "MulticastListenerReport": 131, "MulticastListenerDone": 132, "RouterSolicitation": 133,
		"RouterAdvertisement": 134, "NeighborSolicitation": 135, "NeighborAdvertisement": 136, "RedirectMessage": 137,
		"RouterRenumbering": 138, "ICMPNodeInformationQuery": 139, "ICMPNodeInformationResponse": 140,
		"InverseNeighborDiscoverySolicitation": 141, "InverseNeighborDiscoveryAdvertisement": 142,
		"HomeAgentAddressDiscoveryRequest": 144, "HomeAgentAddressDiscoveryReply": 145, "MobilePrefixSolicitation": 146,
		"MobilePrefixAdvertisement": 147, "DuplicateAddressRequestCodeSuffix": 157, "DuplicateAddressConfirmationCodeSuffix": 158,
		"ExtendedEchoRequest": 160, "ExtendedEchoReply": 161,
	},
}

// icmpType returns the number of an ICMP type that is given by number or name.
// No family is IPv4.
func icmpType(family string, value any) (uint8, error) {
	if family == "" {
		family = "IPv4"
	}
	types, known := icmpTypes[family]
	if !known {
		return 0, errors.New("family " + strconv.Quote(family) + " is neither IPv4 nor IPv6")
	}
	switch v := value.(type) {
	case int64:
		if v >= 0 && v <= 255 {
			return uint8(v), nil
		}
		return 0, fmt.Errorf("%d is no type of ICMP", v)
	case string:
		if number, known := types[v]; known {
			return number, nil
		}
		if number, err := strconv.ParseUint(v, 10, 8); err == nil {
			return uint8(number), nil
		}
		return 0, quoted(v, "is no type of ICMP of "+family)
	case nil:
		return 0, errors.New("type: required")
	}
	return 0, errors.New("type is neither a number nor a name")
}
