// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// layouts are the structs that both sides know. Fields have the same name but
// for what aliases say.
var layouts = []struct {
	c       string
	goType  any
	aliases map[string]string // C name -> Go name
}{
	{c: "pod_key", goType: bpf.PodKey{}},
	{c: "pod_value", goType: bpf.PodValue{}},
	{c: "prefix_key", goType: bpf.IPCacheKey{}},
	{c: "prefix_key", goType: bpf.CoveredKey{}},
	{c: "ipcache_value", goType: bpf.IPCacheValue{}},
	{c: "covered_value", goType: bpf.CoveredValue{}},
	{c: "frontend_key", goType: bpf.FrontendKey{}},
	{c: "frontend_backend", goType: bpf.FrontendBackend{}},
	{c: "frontend_value", goType: bpf.FrontendValue{}},
	{c: "subject_key", goType: bpf.SubjectKey{}},
	{c: "subject_value", goType: bpf.SubjectValue{}},
	{c: "route_value", goType: bpf.RouteValue{}},
	{c: "peer_key", goType: bpf.PeerKey{}},
	{c: "peer_value", goType: bpf.PeerValue{}},
	{c: "egress_key", goType: bpf.EgressKey{}},
	{c: "egress_value", goType: bpf.EgressValue{}},
	{c: "gateway_key", goType: bpf.GatewayKey{}},
	{c: "gateway_value", goType: bpf.GatewayValue{}},
	{c: "exit_key", goType: bpf.ExitKey{}},
	{c: "exit_value", goType: bpf.ExitValue{}},
	{c: "block_value", goType: bpf.BlockValue{}},
	{c: "owner_key", goType: bpf.OwnerKey{}},
	{c: "owner_value", goType: bpf.OwnerValue{}},
	{c: "policy_key", goType: bpf.PolicyKey{}},
	{c: "policy_value", goType: bpf.PolicyValue{}},
	{c: "verdict_key", goType: bpf.VerdictKey{}},
	{c: "verdict_value", goType: bpf.VerdictValue{}, aliases: map[string]string{"is_default": "Default"}},
	{c: "rule_key", goType: bpf.RuleKey{}},
	{c: "node_key", goType: bpf.NodeKey{}},
	{c: "node_value", goType: bpf.NodeValue{}},
	{c: "path_value", goType: bpf.PathValue{}},
	{c: "config_value", goType: bpf.ConfigValue{}},
	{c: "port_range", goType: bpf.PortRange{}},
	{c: "metric", goType: bpf.Metric{}},
	{c: "event", goType: bpf.Event{}, aliases: map[string]string{
		"saddr": "Source", "daddr": "Destination", "sport": "SourcePort", "dport": "DestPort"}},
	{c: "ledger_record", goType: bpf.LedgerRecord{}},
	{c: "limit_key", goType: bpf.LimitKey{}},
	{c: "limit_value", goType: bpf.LimitValue{}},
	{c: "bucket_key", goType: bpf.BucketKey{}},
	{c: "bucket_value", goType: bpf.BucketValue{}},
	{c: "traffic_key", goType: bpf.TrafficKey{}},
	{c: "traffic_value", goType: bpf.TrafficValue{}},
	{c: "traffic_owner", goType: bpf.TrafficOwner{}},
	{c: "traffic_count", goType: bpf.TrafficCount{}},
	{c: "share_key", goType: bpf.ShareKey{}},
	{c: "port_key", goType: bpf.PortKey{}},
	{c: "share_value", goType: bpf.ShareValue{}},
	{c: "tuple4_key", goType: ctmap.Key4{}, aliases: tupleAliases},
	{c: "tuple6_key", goType: ctmap.Key6{}, aliases: tupleAliases},
	{c: "tuple4_key", goType: natmap.Key4{}, aliases: tupleAliases},
	{c: "tuple6_key", goType: natmap.Key6{}, aliases: tupleAliases},
	{c: "ct_entry", goType: ctmap.Entry{}},
	{c: "nat4_entry", goType: natmap.Entry4{}},
	{c: "nat6_entry", goType: natmap.Entry6{}},
	{c: "frag4_key", goType: ctmap.FragKey4{}, aliases: tupleAliases},
	{c: "frag6_key", goType: ctmap.FragKey6{}, aliases: tupleAliases},
	{c: "frag_value", goType: ctmap.FragValue{}, aliases: tupleAliases},
}

var tupleAliases = map[string]string{
	"daddr": "DestAddr", "saddr": "SourceAddr", "dport": "DestPort", "sport": "SourcePort",
}

// TestLayoutsOfBothSides compares the structs of the programs, as the compiler
// laid them out, with those of Go.
func TestLayoutsOfBothSides(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	others, err := packettest.Types()
	require.NoError(t, err)
	for _, l := range layouts {
		goType := reflect.TypeOf(l.goType)
		t.Run(l.c+" "+goType.String(), func(t *testing.T) {
			var c *btf.Struct
			if spec.Types.TypeByName(l.c, &c) != nil {
				require.NoError(t, others.TypeByName(l.c, &c))
			}
			require.EqualValues(t, c.Size, goType.Size(), "size")
			require.Len(t, c.Members, goType.NumField(), "number of fields")
			for i, member := range c.Members {
				field := goType.Field(i)
				want := strings.ReplaceAll(member.Name, "_", "")
				if alias := l.aliases[member.Name]; alias != "" {
					want = alias
				}
				require.True(t, strings.EqualFold(want, field.Name), "field %d: %s in C, %s in Go", i, member.Name, field.Name)
				require.EqualValues(t, member.Offset.Bytes(), field.Offset, "offset of %s", member.Name)
				size, err := btf.Sizeof(member.Type)
				require.NoError(t, err)
				require.EqualValues(t, size, field.Type.Size(), "size of %s", member.Name)
			}
		})
	}
}

// TestMapsOfBothSides compares the sizes of keys and values of the maps with the
// structs that the layouts are of.
func TestMapsOfBothSides(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	sizes := map[string]struct{ key, value any }{
		"sluice_pods":     {bpf.PodKey{}, bpf.PodValue{}},
		"sluice_ipcache":  {bpf.IPCacheKey{}, bpf.IPCacheValue{}},
		"sluice_services": {bpf.FrontendKey{}, bpf.FrontendValue{}},
		"sluice_subjects": {bpf.SubjectKey{}, bpf.SubjectValue{}},
		"sluice_routes":   {bpf.SubjectKey{}, bpf.RouteValue{}},
		"sluice_peers":    {bpf.PeerKey{}, bpf.PeerValue{}},
		"sluice_egress":   {bpf.EgressKey{}, bpf.EgressValue{}},
		"sluice_gateways": {bpf.GatewayKey{}, bpf.GatewayValue{}},
		"sluice_exits":    {bpf.ExitKey{}, bpf.ExitValue{}},
		"sluice_blocks":   {bpf.ExitKey{}, bpf.BlockValue{}},
		"sluice_owners":   {bpf.OwnerKey{}, bpf.OwnerValue{}},
		bpf.VotesMap:      {bpf.ExitKey{}, bpf.VotesValue{}},
		bpf.VotersMap:     {uint32(0), bpf.VotersValue{}},
		bpf.ToldMap:       {bpf.ExitKey{}, bpf.ToldValue{}},
		bpf.LimitsMap:     {bpf.LimitKey{}, bpf.LimitValue{}},
		bpf.BucketsMap:    {bpf.BucketKey{}, bpf.BucketValue{}},
		"sluice_covered":  {bpf.CoveredKey{}, bpf.CoveredValue{}},
		"sluice_nodes":    {bpf.NodeKey{}, bpf.NodeValue{}},
		"sluice_devices":  {bpf.DeviceKey{}, bpf.DeviceValue{}},
		"sluice_policy":   {bpf.PolicyKey{}, bpf.PolicyValue{}},
		"sluice_verdicts": {bpf.VerdictKey{}, bpf.VerdictValue{}},
		"sluice_rules":    {bpf.RuleKey{}, bpf.Metric{}},
		bpf.RuleSlotsMap:  {uint32(0), bpf.RuleKey{}},
		bpf.DecidedMap:    {uint32(0), bpf.Metric{}},
		"sluice_config":   {bpf.ConfigKey{}, bpf.ConfigValue{}},
		"sluice_keys":     {bpf.OverlayKeysKey{}, bpf.OverlayKeysValue{}},
		"sluice_state":    {bpf.StateKey{}, bpf.StateValue{}},
		"sluice_ct4_tcp":  {ctmap.Key4{}, ctmap.Entry{}},
		"sluice_ct4_any":  {ctmap.Key4{}, ctmap.Entry{}},
		"sluice_ct6_tcp":  {ctmap.Key6{}, ctmap.Entry{}},
		"sluice_ct6_any":  {ctmap.Key6{}, ctmap.Entry{}},
		"sluice_nat4":     {natmap.Key4{}, natmap.Entry4{}},
		"sluice_nat6":     {natmap.Key6{}, natmap.Entry6{}},
		"sluice_frag4":    {ctmap.FragKey4{}, ctmap.FragValue{}},
		"sluice_frag6":    {ctmap.FragKey6{}, ctmap.FragValue{}},
		"sluice_metrics":  {uint32(0), bpf.Metric{}},
		bpf.SharesMap:     {bpf.ShareKey{}, bpf.ShareValue{}},
		bpf.PortsMap:      {bpf.PortKey{}, bpf.ShareValue{}},
		bpf.PathsMap:      {bpf.NodeKey{}, bpf.PathValue{}},
		bpf.MissingMap:    {uint32(0), uint64(0)},

		bpf.TrafficMap:       {bpf.TrafficKey{}, bpf.TrafficValue{}},
		bpf.TrafficOwnersMap: {uint32(0), bpf.TrafficOwner{}},
		bpf.TrafficCountsMap: {uint32(0), bpf.TrafficCount{}},
	}
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, "sluice_") || m.Type == ebpf.RingBuf || name == "sluice_clock" { // the programs' alone
			continue
		}
		require.LessOrEqual(t, len(name), 15, "the kernel cuts %s", name)
		if m.InnerMap != nil {
			m = m.InnerMap
		}
		want, ok := sizes[name]
		if !ok {
			t.Errorf("map %s is not compared with anything", name)
			continue
		}
		require.EqualValues(t, reflect.TypeOf(want.key).Size(), m.KeySize, "key of %s", name)
		require.EqualValues(t, reflect.TypeOf(want.value).Size(), m.ValueSize, "value of %s", name)
		delete(sizes, name)
	}
	require.Empty(t, sizes, "the programs do not have these maps")
	require.EqualValues(t, uint32(bpf.ReasonCount)*bpf.Directions, spec.Maps["sluice_metrics"].MaxEntries)
	require.EqualValues(t, bpf.RuleSlots, spec.Maps[bpf.RuleSlotsMap].MaxEntries)
	require.EqualValues(t, bpf.RuleSlots, spec.Maps[bpf.DecidedMap].MaxEntries)
	for _, name := range []string{bpf.TrafficMap, bpf.TrafficOwnersMap, bpf.TrafficCountsMap} {
		require.EqualValues(t, bpf.TrafficCounters, spec.Maps[name].MaxEntries, name)
	}
}

// constants are those of layout.h, connections.h and event.h that Go has under another name.
var constants = map[string]uint64{
	"FAMILY_IPV4": uint64(bpf.FamilyIPv4), "FAMILY_IPV6": uint64(bpf.FamilyIPv6),
	"POD_LOCAL": uint64(bpf.PodLocal), "EMPTY_RULESET": bpf.EmptyRuleset, "ANY_CLASS": bpf.AnyClass,
	"RULE_SLOTS":         bpf.RuleSlots,
	"TRAFFIC_COUNTERS":   bpf.TrafficCounters,
	"IPCACHE_IN_CLUSTER": uint64(bpf.IPCacheInCluster), "IPCACHE_HOST": uint64(bpf.IPCacheHost),
	"IPCACHE_NODE": uint64(bpf.IPCacheNode), "IPCACHE_SERVICE": uint64(bpf.IPCacheService),
	"IPCACHE_POD": uint64(bpf.IPCachePod), "IPCACHE_LOCAL_SCOPE": uint64(bpf.IPCacheLocalScope),
	"IPCACHE_APISERVER": uint64(bpf.IPCacheAPIServer), "IPCACHE_LOCAL_PODS": uint64(bpf.IPCacheLocalPods),
	"GROUP_EXCLUDED": uint64(bpf.GroupExcluded), "GATEWAY_BUCKETS": bpf.GatewayBuckets,
	"EXIT_SHARED": uint64(bpf.ExitShared), "BLOCK_FIXED": uint64(bpf.BlockFixed),
	"NODE_ALIVE":           uint64(bpf.NodeAlive),
	"CONFIG_STRICT_SOURCE": uint64(bpf.ConfigStrictSource), "CONFIG_BACKSTOP": uint64(bpf.ConfigBackstop),
	"CONFIG_FLOW_EVENTS": uint64(bpf.ConfigFlowEvents), "CONFIG_ALLOW_LOCALHOST": uint64(bpf.ConfigAllowLocalhost),
	"CONFIG_NETWORK_POLICIES": uint64(bpf.ConfigNetworkPolicies),
	"CONFIG_FLOATING":         uint64(bpf.ConfigFloating),
	"CONFIG_EGRESS_IPS":       uint64(bpf.ConfigEgressIPs),
	"BLOCK_PORT_MIN":          bpf.BlockPortMin,
	"EGRESS_VOTERS":           bpf.EgressVoters,
	"VOTER_SETS":              bpf.VoterSets,
	"CONFIG_LIMITS":           uint64(bpf.ConfigLimits),
	"LIMIT_BUCKETS":           bpf.LimitBuckets,
	"LIMIT_BURST":             uint64(bpf.LimitBurst),
	"CONFIG_PACED":            uint64(bpf.ConfigPaced),
	"LIMIT_PACKET":            bpf.LimitPacket,
	"LIMIT_QUEUE":             bpf.LimitQueue,
	"LIMIT_WAIT":              uint64(bpf.LimitWait),
	"SHARED_PORT_RANGES":      bpf.SharedPortRanges,
	"TUPLE_OUT":               uint64(ctmap.Out), "TUPLE_IN": uint64(ctmap.In), "TUPLE_RELATED": uint64(ctmap.Related),
	"TUPLE_SERVICE": uint64(ctmap.Service),
	"CT_RX_CLOSING": uint64(ctmap.RxClosing), "CT_TX_CLOSING": uint64(ctmap.TxClosing),
	"CT_SEEN_NON_SYN": uint64(ctmap.SeenNonSYN), "CT_FROM_TUNNEL": uint64(ctmap.FromTunnel), "CT_SERVICE": uint64(ctmap.ToService),
	"CT_OF_HOST": uint64(ctmap.OfHost), "CT_OF_POD": uint64(ctmap.OfPod),
	"LIMITED_CT4_TCP": bpf.LimitedCT4TCP, "LIMITED_CT4_ANY": bpf.LimitedCT4Any,
	"LIMITED_CT6_TCP": bpf.LimitedCT6TCP, "LIMITED_CT6_ANY": bpf.LimitedCT6Any,
	"LIMITED_NAT4": bpf.LimitedNAT4, "LIMITED_NAT6": bpf.LimitedNAT6, "LIMITED_MAPS": bpf.LimitedMaps,
	"LEDGER_BEGIN": uint64(bpf.LedgerBegin), "LEDGER_EXPIRED": uint64(bpf.LedgerExpired),
	"LEDGER_ORPHAN": uint64(bpf.LedgerOrphan), "LEDGER_RELEASED": uint64(bpf.LedgerReleased),
	"LEDGER_FLUSHED": uint64(bpf.LedgerFlushed), "LEDGER_CONDEMNED": uint64(bpf.LedgerCondemned),
	"LEDGER_REUSED": uint64(bpf.LedgerReused), "LEDGER_RENEWED": uint64(bpf.LedgerRenewed),
	"LEDGER_UNDONE": uint64(bpf.LedgerUndone),
	"LEDGER_MISSED": uint64(bpf.LedgerMissed), "LEDGER_TOLD": uint64(bpf.LedgerTold),
	"LEDGER_READER": uint64(bpf.LedgerReader),
	"REASON_PASSED": uint64(bpf.ReasonPassed), "REASON_TO_GATEWAY": uint64(bpf.ReasonToGateway),
	"REASON_TRANSLATED": uint64(bpf.ReasonTranslated), "REASON_REPLY_LOCAL": uint64(bpf.ReasonReplyLocal),
	"REASON_REPLY_OVERLAY": uint64(bpf.ReasonReplyOverlay), "REASON_HOST_TRANSLATED": uint64(bpf.ReasonHostTranslated),
	"REASON_EVENT_LOST": uint64(bpf.ReasonEventLost),
	"REASON_DROPS":      uint64(bpf.ReasonDrops), "REASON_MALFORMED": uint64(bpf.ReasonMalformed),
	"REASON_UNKNOWN_SOURCE": uint64(bpf.ReasonUnknownSource), "REASON_POD_NOT_READY": uint64(bpf.ReasonPodNotReady),
	"REASON_NO_GATEWAY": uint64(bpf.ReasonNoGateway), "REASON_NO_EGRESS_IP": uint64(bpf.ReasonNoEgressIP),
	"REASON_CONNECTION_SHARE": uint64(bpf.ReasonConnectionShare),
	"REASON_PORT_SHARE":       uint64(bpf.ReasonPortShare),
	"REASON_NOT_OWNED":        uint64(bpf.ReasonNotOwned),
	"REASON_NO_PORT_BLOCK":    uint64(bpf.ReasonNoPortBlock),
	"REASON_OTHER_BLOCK":      uint64(bpf.ReasonOtherBlock),
	"REASON_BANDWIDTH":        uint64(bpf.ReasonBandwidth),
	"REASON_NO_SNAT_PORT":     uint64(bpf.ReasonNoSNATPort), "REASON_UNKNOWN_NODE": uint64(bpf.ReasonUnknownNode),
	"REASON_NO_RULE": uint64(bpf.ReasonNoRule), "REASON_PREDATES_POLICY": uint64(bpf.ReasonPredatesPolicy),
	"REASON_UNSUPPORTED_PROTOCOL": uint64(bpf.ReasonUnsupportedProtocol),
	"REASON_UNKNOWN_FRAGMENT":     uint64(bpf.ReasonUnknownFragment), "REASON_TOO_BIG": uint64(bpf.ReasonTooBig),
	"REASON_TTL_EXCEEDED": uint64(bpf.ReasonTTLExceeded), "REASON_NOT_CHECKED": uint64(bpf.ReasonNotChecked),
	"REASON_SERVICE_OUTSIDE": uint64(bpf.ReasonServiceOutside), "REASON_NAT_FAILED": uint64(bpf.ReasonNATFailed),
	"REASON_WRITE_FAILED": uint64(bpf.ReasonWriteFailed), "REASON_NOT_CONFIGURED": uint64(bpf.ReasonNotConfigured),
	"REASON_UNKNOWN_DESTINATION": uint64(bpf.ReasonUnknownDestination),
	"REASON_POLICY_DENIED":       uint64(bpf.ReasonPolicyDenied), "REASON_POLICY_RULE": uint64(bpf.ReasonPolicyRule),
	"REASON_OVERLAY_UNSIGNED": uint64(bpf.ReasonOverlayUnsigned),
	"REASON_OVERLAY_PORT":     uint64(bpf.ReasonOverlayPort), "REASON_OVERLAY_KEY": uint64(bpf.ReasonOverlayKey),
	"OVERLAY_KEYS":     bpf.OverlayKeys,
	"REASON_COUNT":     uint64(bpf.ReasonCount),
	"PROGRAM_FROM_POD": uint64(bpf.ProgramFromPod), "PROGRAM_TO_POD": uint64(bpf.ProgramToPod),
	"PROGRAM_FROM_OVERLAY": uint64(bpf.ProgramFromOverlay), "PROGRAM_FROM_NETDEV": uint64(bpf.ProgramFromNetdev),
	"PROGRAM_TO_NETDEV": uint64(bpf.ProgramToNetdev), "PROGRAM_BACKSTOP": uint64(bpf.ProgramBackstop),
	"DIRECTION_EGRESS": uint64(bpf.DirectionEgress), "DIRECTION_INGRESS": uint64(bpf.DirectionIngress), "DIRECTIONS": bpf.Directions,
	"EVENT_DROP": uint64(bpf.EventDrop), "EVENT_FLOW": uint64(bpf.EventFlow),
	"FRONTEND_AT_NODE": uint64(bpf.FrontendAtNode), "FRONTEND_MORE": uint64(bpf.FrontendMore),
	"FRONTEND_BACKENDS": bpf.FrontendBackends,
	"PATH_NONCES":       bpf.PathNonces,
	"SLOTS":             bpf.Slots,
	// Of the mark nothing but the programs knows the bits.
	"MARK_CHECKED": 1, "MARK_TRANSLATED": 2, "MARK_SERVICE": 3,
}

var (
	commentPattern  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	constantPattern = regexp.MustCompile(`(?:#define )?\b([A-Z][A-Z0-9_]+)(?: = | )(0x[0-9a-f]+|\d+)(?: << (\d+))?[,\s}]`)
)

// TestConstantsOfBothSides compares the numbers of the headers with those of Go:
// each has its counterpart, and none is missing.
func TestConstantsOfBothSides(t *testing.T) {
	text := ""
	for _, name := range []string{"layout.h", "connections.h", "event.h"} {
		header, err := os.ReadFile("../programs/" + name)
		require.NoError(t, err)
		text += commentPattern.ReplaceAllString(string(header), "")
	}
	found := map[string]bool{}
	for _, m := range constantPattern.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseUint(m[2], 0, 64)
		require.NoError(t, err)
		if m[3] != "" {
			shift, err := strconv.Atoi(m[3])
			require.NoError(t, err)
			value <<= shift
		}
		found[m[1]] = true
		want, ok := constants[m[1]]
		if !ok {
			t.Errorf("%s has no counterpart in Go", m[1])
			continue
		}
		require.Equal(t, want, value, m[1])
	}
	for name := range constants {
		if !found[name] {
			t.Errorf("the headers do not have %s", name)
		}
	}
}

// TestReasonsHaveNames holds that no number of event.h is shown as a number.
func TestReasonsHaveNames(t *testing.T) {
	for name, value := range constants {
		if strings.HasPrefix(name, "REASON_") && name != "REASON_COUNT" {
			require.NotContains(t, bpf.Reason(value).String(), "reason-", name)
		}
	}
}
