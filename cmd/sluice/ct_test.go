// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/ctmap/percluster"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
)

// tracked is a node with pinned maps, in a BPF file system of its own.
type tracked struct {
	t     *testing.T
	bpffs string
	now   uint32
	ct    map[string]ctmap.Map
	nat   map[string]natmap.Map
}

func newBPFFS(t *testing.T) string {
	inNamespace(t)
	bpffs := filepath.Join(tempDir(t), "bpffs")
	require.NoError(t, bpf.Probe(bpffs))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bpffs, unix.MNT_DETACH)) })
	return bpffs
}

func newTracked(t *testing.T) *tracked {
	n := &tracked{t: t, bpffs: newBPFFS(t), ct: map[string]ctmap.Map{}, nat: map[string]natmap.Map{}}
	dir := bpf.MapsDir(n.bpffs)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for _, name := range ctmap.Names() {
		m, err := ctmap.OpenOrCreate(dir, name, 1000, nil)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		n.ct[name] = m
	}
	for _, name := range natmap.Names() {
		m, err := natmap.OpenOrCreate(dir, name, 500, nil)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		n.nat[name] = m
	}
	var err error
	n.now, err = gc.Now()
	require.NoError(t, err)
	return n
}

// track adds a connection that expires in some seconds, with a translation unless
// to is empty.
func (n *tracked) track(protocol ctmap.Protocol, from, to string, flags ctmap.EntryFlags, expires int, translated string) {
	t := ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: uint8(protocol)}
	require.NoError(n.t, n.ct[ctmap.CTName(t.Is6(), t.Protocol)].Update(t, ctmap.Entry{
		Created: n.now - 100, Lifetime: uint32(int(n.now) + expires), Flags: flags, Packets: 12, Bytes: 3456,
		Gateway: bpf.AddressFrom(netip.MustParseAddr("192.168.50.12")),
	}))
	if translated == "" {
		return
	}
	nat := n.nat[natmap.Name4]
	if t.Is6() {
		nat = n.nat[natmap.Name6]
	}
	addr, made := netip.MustParseAddrPort(translated), uint64(n.now-100)*1e9
	node := netip.MustParseAddr("192.168.50.11")
	require.NoError(n.t, nat.Update(t, natmap.Translation{Created: made, NeedsCT: 1, Used: n.now - 40, To: addr, Tunnel: node}))
	t = ctmap.Tuple{Source: t.Destination, Destination: addr, Protocol: t.Protocol, Flags: ctmap.In}
	require.NoError(n.t, nat.Update(t, natmap.Translation{Created: made, NeedsCT: 1, Used: n.now - 40, To: netip.MustParseAddrPort(from), Tunnel: node}))
}

// fill adds the connections of the tests.
func (n *tracked) fill() {
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40000", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "203.0.113.102:40000")
	n.track(unix.IPPROTO_TCP, "10.1.0.6:40001", "198.51.100.10:443", ctmap.SeenNonSYN|ctmap.TxClosing, -500, "")
	n.track(unix.IPPROTO_UDP, "10.1.0.5:5353", "198.51.100.53:53", 0, -30, "203.0.113.102:5353")
	n.track(unix.IPPROTO_ICMP, "10.1.0.5:77", "198.51.100.10:0", 0, -500, "")
	n.track(unix.IPPROTO_TCP, "[fd00::5]:40002", "[2001:db8::10]:443", 0, 50, "[2001:db8:1::1]:40002")
}

// run runs a command on the node.
func (n *tracked) run(args ...string) result {
	return sluice(n.t, append(args, "--bpffs="+n.bpffs)...)
}

// left returns how many entries connections and translations have.
func (n *tracked) left() (connections, translations int) {
	for _, m := range n.ct {
		count, err := m.Count()
		require.NoError(n.t, err)
		connections += count
	}
	for _, m := range n.nat {
		count, err := m.Count()
		require.NoError(n.t, err)
		translations += count
	}
	return connections, translations
}

var (
	seconds = regexp.MustCompile(`\b\d{2,4}s\b`)
	spaces  = regexp.MustCompile(` {3,}`)
	took    = regexp.MustCompile(`\| [0-9.µmn]+s \| ([0-9.µmn]+s|-)\n`)
)

// masked returns a table without what differs from run to run.
func masked(text string) string {
	text = seconds.ReplaceAllString(spaces.ReplaceAllString(text, " | "), "N")
	return took.ReplaceAllString(text, "| D | D\n")
}

// fakeAgent answers as an agent does that knows a pod and its node, and works on
// the node's maps.
func fakeAgent(n *tracked) (requests *[]api.GCRequest) {
	socket := filepath.Join(tempDir(n.t), "s.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(n.t, err)
	requests = &[]api.GCRequest{}
	answer := func(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { answer(w, version.Get()) })
	mux.HandleFunc("GET /statedb/dump/endpoints", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"endpoints": []tables.Endpoint{
			{Name: tables.Name{Namespace: "shop", Name: "web-1"}, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5")}},
			{Name: tables.Name{Namespace: "shop", Name: "db-1"}, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.7")}},
		}})
	})
	mux.HandleFunc("GET /statedb/dump/nodes", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"nodes": []tables.Node{
			{Name: "node-1", InternalIPs: []netip.Addr{netip.MustParseAddr("192.168.50.11")}},
			{Name: "node-2", InternalIPs: []netip.Addr{netip.MustParseAddr("192.168.50.12")}},
		}})
	})
	mux.HandleFunc("POST /gc", func(w http.ResponseWriter, r *http.Request) {
		var request api.GCRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		*requests = append(*requests, request)
		passes, err := collectAlone(r.Context(), n.bpffs, &request, &buffer{})
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			answer(w, api.GCAnswer{Err: err.Error()})
			return
		}
		answer(w, api.GCAnswer{Passes: passes})
	})
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { server.Serve(l); close(done) }()
	n.t.Cleanup(func() { server.Close(); <-done })
	n.t.Setenv("SLUICE_SERVER", "unix://"+socket)
	return requests
}

// anyAgent has the commands ask whatever agent there is, which is none.
func anyAgent(t *testing.T) {
	noAgent(t)
	t.Setenv("SLUICE_SERVER", "")
	t.Setenv("XDG_RUNTIME_DIR", tempDir(t))
	t.Setenv("SLUICE_API_LISTEN", "127.0.0.1:1")
}

func TestCTList(t *testing.T) {
	n := newTracked(t)
	n.fill()
	noAgent(t)
	const header = "Protocol | Source | Destination | Direction | State | Age | Expires | Packets | Bytes | Gateway\n"
	r := n.run("ct", "list")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, header+
		"tcp | 10.1.0.5:40000 | 198.51.100.10:443 | out | established | N | N | 12 | 3456 | 192.168.50.12\n"+
		"tcp | 10.1.0.6:40001 | 198.51.100.10:443 | out | expired | N | -N | 12 | 3456 | 192.168.50.12\n"+
		"icmp | 10.1.0.5:77 | 198.51.100.10 | out | expired | N | -N | 12 | 3456 | 192.168.50.12\n"+
		"udp | 10.1.0.5:5353 | 198.51.100.53:53 | out | expired | N | -N | 12 | 3456 | 192.168.50.12\n"+
		"tcp | [fd00::5]:40002 | [2001:db8::10]:443 | out | syn | N | N | 12 | 3456 | 192.168.50.12\n", masked(r.stdout))
	require.Equal(t, "sluice: pods and nodes have no names here: no agent answers\n", r.stderr)

	r = n.run("ct", "list", "--pod=web-")
	require.Equal(t, exitNoAgent, r.code, r.stderr)
	require.Contains(t, r.stderr, "find pod web-: no agent answers that knows its addresses: give them instead")
	r = n.run("ct", "count", "--pod=shop/web-1")
	require.Equal(t, exitNoAgent, r.code, r.stderr)

	fakeAgent(n)
	r = n.run("ct", "list", "--pod=web-", "--pod=10.1.0.6", "--ip=198.51.100.0/28", "--protocol=tcp")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.Equal(t, header+
		"tcp | shop/web-1:40000 | 198.51.100.10:443 | out | established | N | N | 12 | 3456 | node-2\n"+
		"tcp | 10.1.0.6:40001 | 198.51.100.10:443 | out | expired | N | -N | 12 | 3456 | node-2\n", masked(r.stdout))
	for args, want := range map[string]int{
		"--port=443": 3, "--port=443 --port=53": 4, "--state=expired": 3, "--expired": 3, "--expired --protocol=tcp": 1,
		"--direction=in": 0, "--direction=out": 5, "--family=ipv6": 1, "--family=ipv4": 4, "--protocol=17": 1,
		"--pod=shop/web-1 --family=ipv6": 1, "--ip=fd00::/64": 1, "--pod=db": 0, "--pod=shop/web": 4,
	} {
		r := n.run(append([]string{"ct", "list"}, strings.Fields(args)...)...)
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Equal(t, want, strings.Count(r.stdout, "\n")-1, "%s: %s", args, r.stdout)
	}
	r = n.run("ct", "list", "--pod=nobody")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "find pod nobody: the agent knows none of that name")
}

func TestCTListJSON(t *testing.T) {
	n := newTracked(t)
	n.fill()
	fakeAgent(n)
	r := n.run("ct", "list", "-o", "json", "--port=53")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.JSONEq(t, `[{"map": "sluice_ct4_any", "source": "10.1.0.5:5353", "sourcePod": "shop/web-1", "destination": "198.51.100.53:53",
		"protocol": "udp", "direction": "out", "state": "expired", "packets": 12, "bytes": 3456, "gateway": "192.168.50.12",
		"gatewayNode": "node-2", "generation": 0, "cookie": 0, "ageSeconds": 100, "expiresInSeconds": -30}]`, n.sameSecond(r.stdout))
	r = n.run("nat", "list", "-o", "json", "--port=53", "--direction=in")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.JSONEq(t, `[{"map": "sluice_nat4", "source": "198.51.100.53:53", "destination": "203.0.113.102:5353", "protocol": "udp",
		"direction": "in", "to": "10.1.0.5:5353", "toPod": "shop/web-1", "tunnel": "192.168.50.11", "tunnelNode": "node-1",
		"needsCT": true, "ageSeconds": 100, "idleSeconds": 40}]`, n.sameSecond(r.stdout))
	for _, args := range []string{"ct list", "nat list"} {
		r = n.run(append(strings.Fields(args), "-o", "json", "--port=1")...)
		require.Equal(t, "[]\n", r.stdout, r.stderr)
	}
}

// sameSecond takes back what has passed since the connections were made.
func (n *tracked) sameSecond(text string) string {
	var records []map[string]any
	require.NoError(n.t, json.Unmarshal([]byte(text), &records))
	for _, r := range records {
		late := r["ageSeconds"].(float64) - 100
		require.GreaterOrEqual(n.t, late, 0.0)
		for field, sign := range map[string]float64{"ageSeconds": -1, "idleSeconds": -1, "expiresInSeconds": 1} {
			if value, ok := r[field].(float64); ok {
				r[field] = value + sign*late
			}
		}
	}
	data, err := json.Marshal(records)
	require.NoError(n.t, err)
	return string(data)
}

func TestNATList(t *testing.T) {
	n := newTracked(t)
	n.fill()
	fakeAgent(n)
	const header = "Protocol | Source | Destination | Direction | To | Age | Idle | Node\n"
	r := n.run("nat", "list")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, header+
		"udp | shop/web-1:5353 | 198.51.100.53:53 | out | 203.0.113.102:5353 | N | N | node-1\n"+
		"udp | 198.51.100.53:53 | 203.0.113.102:5353 | in | shop/web-1:5353 | N | N | node-1\n"+
		"tcp | shop/web-1:40000 | 198.51.100.10:443 | out | 203.0.113.102:40000 | N | N | node-1\n"+
		"tcp | 198.51.100.10:443 | 203.0.113.102:40000 | in | shop/web-1:40000 | N | N | node-1\n"+
		"tcp | shop/web-1:40002 | [2001:db8::10]:443 | out | [2001:db8:1::1]:40002 | N | N | node-1\n"+
		"tcp | [2001:db8::10]:443 | [2001:db8:1::1]:40002 | in | shop/web-1:40002 | N | N | node-1\n", masked(r.stdout))
	r = n.run("nat", "list", "--pod=shop/web-1", "--ip=203.0.113.102", "--protocol=udp", "--direction=out")
	require.Equal(t, header+"udp | shop/web-1:5353 | 198.51.100.53:53 | out | 203.0.113.102:5353 | N | N | node-1\n", masked(r.stdout))
	r = n.run("nat", "count", "--direction=in")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "Map           Entries   Size   Pressure   Matching\n"+
		"sluice_nat4   4         500    0.8 %      2\n"+
		"sluice_nat6   2         500    0.4 %      1\n", r.stdout)
}

func TestCTCount(t *testing.T) {
	n := newTracked(t)
	n.fill()
	noAgent(t)
	r := n.run("ct", "count")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "Map              Entries   Size   Pressure\n"+
		"sluice_ct4_tcp   2         1000   0.2 %\n"+
		"sluice_ct4_any   2         1000   0.2 %\n"+
		"sluice_ct6_tcp   1         1000   0.1 %\n"+
		"sluice_ct6_any   0         1000   0.0 %\n", r.stdout)
	require.Empty(t, r.stderr, "no agent was needed")
	r = n.run("ct", "count", "--expired", "--pod=10.1.0.5", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.JSONEq(t, `[
		{"map": "sluice_ct4_tcp", "entries": 2, "size": 1000, "pressure": 0.002, "matching": 0},
		{"map": "sluice_ct4_any", "entries": 2, "size": 1000, "pressure": 0.002, "matching": 2},
		{"map": "sluice_ct6_tcp", "entries": 1, "size": 1000, "pressure": 0.001, "matching": 0},
		{"map": "sluice_ct6_any", "entries": 0, "size": 1000, "pressure": 0, "matching": 0}]`, r.stdout)
}

// The maps of other clusters are shown and flushed with the global ones.
func TestCTOfClusters(t *testing.T) {
	n := newTracked(t)
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40000", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "203.0.113.102:40000")
	arrays, err := percluster.OpenOrCreate(bpf.MapsDir(n.bpffs), nil)
	require.NoError(t, err)
	defer arrays.Close()
	require.NoError(t, arrays.Create(7, percluster.Sizes{CTTCP: 100, CTAny: 100, NAT: 100}))
	cluster, err := arrays.Get(7)
	require.NoError(t, err)
	defer cluster.Close()
	here := n.ct[ctmap.CT4TCP]
	n.ct[ctmap.CT4TCP] = cluster.Connections[0]
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40007", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "")
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40008", "198.51.100.10:443", ctmap.SeenNonSYN, -500, "")
	anyAgent(t)

	r := n.run("ct", "list", "--port=40007", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, `"map": "sluice_cct4_tcp/7"`)
	r = n.run("ct", "count", "--port=443")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `(?m)^sluice_ct4_tcp +1 +1000 +0\.1 % +1$`, r.stdout)
	require.Regexp(t, `(?m)^sluice_cct4_tcp/7 +2 +100 +2\.0 % +2$`, r.stdout)
	r = n.run("ct", "gc")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `(?m)^sluice_cct4_tcp/7 +iterator +2 +1 `, r.stdout)
	r = n.run("ct", "flush", "--ip=198.51.100.10")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "removed 2 connections and 2 entries of translations\n", r.stdout)
	n.ct["global"] = here
	connections, translations := n.left()
	require.Zero(t, connections+translations)
}

func TestCTUsage(t *testing.T) {
	noAgent(t)
	for args, message := range map[string]string{
		"ct drop":                      `unknown command "drop" for "sluice ct"`,
		"nat gc":                       `unknown command "gc" for "sluice nat"`,
		"ct list x":                    `want no argument, got "x"`,
		"ct list --pod=Web":            `unknown pod "Web": want namespace/name`,
		"ct list --pod=10.0.0.1/8":     "has bits behind its prefix: want 10.0.0.0/8",
		"ct list --ip=web":             `address "web": want an IPv4 or IPv6 address or prefix`,
		"ct list --port=https":         `port "https": want a number from 0 to 65535`,
		"ct list --port=65536":         `port "65536"`,
		"ct list --protocol=xtp":       `protocol "xtp": want tcp, udp`,
		"ct count --state=new":         `state "new": want syn, established`,
		"ct flush --direction=up":      `direction "up": want out, in`,
		"nat list --family=ip":         `family "ip": want ipv4 or ipv6`,
		"nat list --state=syn":         "unknown flag: --state",
		"nat list -o xml":              "valid are: table, wide, json, yaml",
		"ct flush":                     "want either filters that choose connections, or --all",
		"ct flush --all --port=443":    "want either filters that choose connections, or --all",
		"ct gc --port=443":             "unknown flag: --port",
		"ct gc --server=ftp://x":       "want unix:///path or http://address:port",
		"ct list --server=ftp://x --x": "unknown flag",
	} {
		r := sluice(t, strings.Fields(args)...)
		require.Equal(t, exitUsage, r.code, "%s: %s", args, r.stderr)
		require.Contains(t, r.stderr, message, args)
		require.Empty(t, r.stdout, args)
	}
	for _, group := range []string{"ct", "nat"} {
		r := sluice(t, group)
		require.Equal(t, exitOK, r.code)
		require.Contains(t, r.stdout, "Available Commands:")
	}
}

func TestCTWithoutMaps(t *testing.T) {
	bpffs := newBPFFS(t)
	anyAgent(t)
	for _, args := range []string{"ct list", "ct count", "ct gc", "ct flush --all", "nat list", "nat count"} {
		for _, where := range []string{bpffs, filepath.Join(bpffs, "none"), t.TempDir()} {
			r := sluice(t, append(strings.Fields(args), "--bpffs="+where)...)
			require.Equal(t, exitError, r.code, args)
			require.Contains(t, r.stderr, "no agent has run with kernel maps here", args)
			require.Empty(t, r.stdout)
		}
	}
}
