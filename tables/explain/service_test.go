// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func tcp(name string, port, target uint16) tables.ServicePort {
	return tables.ServicePort{Name: name, Protocol: 6, Port: port, TargetPort: target}
}

func slicePort(name string, port uint16) tables.BackendPort {
	return tables.BackendPort{Name: name, Protocol: 6, Port: port}
}

// serve has a service at 10.96.0.20 and by that of node-2, for pods with a label if
// there is one, and with slices.
func (w *world) serve(app string, ports []tables.ServicePort, backends ...*tables.BackendSlice) {
	s := &tables.Service{Name: name("shop/api"), Addrs: []netip.Addr{addr("10.96.0.20"), addr("192.168.0.2")}, Ports: ports}
	if app != "" {
		s.Selector = map[string]string{"app": app}
	}
	tablestest.Insert(w.t, w.DB, w.Services, s)
	for i, b := range backends {
		b.Name, b.Service = name("shop/api-"+string(rune('a'+i))), s.Name
	}
	tablestest.Insert(w.t, w.DB, w.Backends, backends...)
}

// destinations are where an answer says that a service leads.
func destinations(p *Policy) (texts []string) {
	for _, b := range p.Backends {
		texts = append(texts, b.destination())
	}
	return texts
}

// The port asked for is that of the service. Backends are asked with the port that
// their slice gives its name, pods that are selected with its target.
func TestServicePorts(t *testing.T) {
	ports := []tables.ServicePort{
		tcp("http", 80, 8080), tcp("admin", 8080, 9000), {Name: "dns", Protocol: 17, Port: 80, TargetPort: 53},
		{Name: "web", Protocol: 6, Port: 443, TargetName: "http"},
	}
	list := func(texts ...string) (addrs []netip.Addr) {
		for _, text := range texts {
			addrs = append(addrs, addr(text))
		}
		return addrs
	}
	for _, test := range []struct {
		name, app string
		slices    []*tables.BackendSlice
		port      string
		want      []string
	}{
		{"pods, by number", "web", nil, "80", []string{"10.1.0.5:8080"}},
		{"pods, by name", "web", nil, "http", []string{"10.1.0.5:8080"}},
		{"pods, by number of another", "web", nil, "8080", []string{"10.1.0.5:9000"}},
		{"pods, another protocol", "web", nil, "80/udp", []string{"10.1.0.5:53"}},
		{"pods, to a name", "web", nil, "443", []string{"10.1.0.5:80"}},
		{"pods, listed too", "web", []*tables.BackendSlice{{Ports: []tables.BackendPort{slicePort("http", 8080)}}}, "80", []string{"10.1.0.5:8080"}},
		{
			"slices", "", []*tables.BackendSlice{
				{Addrs: list("10.9.0.1", "10.9.0.2", "fd00::9"), Ports: []tables.BackendPort{slicePort("admin", 1), slicePort("http", 3000)}},
				{Addrs: list("10.9.0.3"), Ports: []tables.BackendPort{slicePort("http", 3001)}},
				{Addrs: list("10.9.0.4"), Ports: []tables.BackendPort{slicePort("admin", 3002), {Name: "http", Protocol: 17, Port: 3003}}},
			},
			"80", []string{"10.9.0.1:3000", "10.9.0.2:3000", "10.9.0.3:3001"},
		},
		{"a slice without ports", "", []*tables.BackendSlice{{Addrs: list("10.9.0.1")}}, "80", nil},
		{"no backends", "none", nil, "80", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, inMemory(t))
			w.serve(test.app, ports, test.slices...)
			answer, err := w.Policy("shop/client", "10.96.0.20", test.port, "")
			require.NoError(t, err)
			require.Equal(t, test.want, destinations(answer))
			require.Equal(t, len(test.want) == 0, answer.Reason == ReasonNoBackend, answer.Reason)
		})
	}
}

func TestServicePortErrors(t *testing.T) {
	w := newWorld(t, inMemory(t))
	shared := []netip.Addr{addr("198.51.100.7")}
	tablestest.Insert(w.t, w.DB, w.Services,
		&tables.Service{Name: name("shop/a"), Addrs: shared, Ports: []tables.ServicePort{tcp("http", 81, 81)}},
		&tables.Service{Name: name("shop/b"), Addrs: shared, Ports: []tables.ServicePort{tcp("http", 82, 82)}},
		&tables.Service{Name: name("shop/c"), Addrs: shared})
	for _, test := range []struct{ to, port, want string }{
		{"10.96.0.10", "8007", "port: no service at 10.96.0.10 has a port 8007/tcp: shop/web has https=443/tcp to http, admin=80/tcp to 8007"},
		{"10.96.0.10", "http", "port: no service at 10.96.0.10 has a port http/tcp: shop/web has https=443/tcp to http, admin=80/tcp to 8007"},
		{"10.96.0.11", "5432/udp", "port: no service at 10.96.0.11 has a port 5432/udp: shop/db has 5432/tcp"},
		{"10.96.0.11", "8/icmp", "port: no service at 10.96.0.11 has a port 8/icmp: shop/db has 5432/tcp"},
		{"10.96.0.11", "8/icmpv6", "protocol: icmpv6 is of IPv6: want icmp"},
		{"198.51.100.7", "80", "port: no service at 198.51.100.7 has a port 80/tcp: shop/a has http=81/tcp; shop/b has http=82/tcp; shop/c has no port"},
		{"198.51.100.7", "http", `port: 198.51.100.7 has several ports named "http" for tcp: ask for one of 81, 82`},
	} {
		_, err := w.Policy("shop/client", test.to, test.port, "")
		require.EqualError(t, err, test.want)
		require.ErrorAs(t, err, &Error{})
	}
}

// What services at an address of a node or of a pod do not take is for these.
func TestServiceAtANode(t *testing.T) {
	w := newWorld(t, inMemory(t))
	w.serve("web", []tables.ServicePort{tcp("http", 80, 8080)})
	for port, want := range map[string][]string{"80": {"10.1.0.5:8080"}, "22": nil, "8/icmp": nil} {
		answer, err := w.Policy("shop/client", "192.168.0.2", port, "")
		require.NoError(t, err)
		require.Equal(t, want, destinations(answer), port)
	}
	onDevice := addr("192.168.7.7") // as of a load balancer on the node
	tablestest.Insert(w.t, w.DB, w.NodeAddresses, &tables.NodeAddress{
		Addr: onDevice, Device: "eth0",
	})
	tablestest.Insert(w.t, w.DB, w.Services, &tables.Service{
		Name: name("shop/balanced"), Addrs: []netip.Addr{onDevice},
		Ports: []tables.ServicePort{tcp("http", 80, 80)},
	})
	answer, err := w.Policy("shop/client", onDevice.String(), "22", "")
	require.NoError(t, err)
	require.Empty(t, answer.Backends)
	_, err = w.Policy("shop/client", "192.168.0.2", "ssh", "")
	require.EqualError(t, err, `port: 192.168.0.2 has no port named "ssh" for tcp`)
}

// Services that share an address lead to the backends of all that have the port.
func TestServicesAtAnAddress(t *testing.T) {
	w := newWorld(t, inMemory(t))
	w.serve("web", []tables.ServicePort{tcp("http", 80, 8080)})
	tablestest.Insert(w.t, w.DB, w.Services,
		&tables.Service{Name: name("shop/other"), Selector: map[string]string{"app": "client"}, Addrs: []netip.Addr{addr("10.96.0.20")},
			Ports: []tables.ServicePort{tcp("", 80, 81), tcp("more", 82, 82)}})
	for port, want := range map[string][]string{"80": {"10.1.0.5:8080", "10.1.0.6:81"}, "82": {"10.1.0.6:82"}, "http": {"10.1.0.5:8080"}} {
		answer, err := w.Policy("shop/db", "10.96.0.20", port, "")
		require.NoError(t, err)
		require.Equal(t, want, destinations(answer), port)
	}
}

// Of a name that is that of several ports of a pod, slices say which are meant.
func TestTargetOfSeveralPorts(t *testing.T) {
	w := newWorld(t, inMemory(t))
	pod, _, _ := w.Endpoints.Get(w.DB.ReadTxn(), tables.EndpointByName(name("shop/web")))
	both, set := *pod, *pod.LabelSet
	set.NamedPorts = append(slices.Clone(set.NamedPorts), tables.NamedPort{Name: "http", Protocol: 6, Port: 8080})
	both.LabelSet = &set
	tablestest.Insert(w.t, w.DB, w.Endpoints, &both)
	leads := func(want ...string) {
		t.Helper()
		answer, err := w.Policy("shop/client", "10.96.0.20", "443", "")
		require.NoError(t, err)
		require.Equal(t, want, destinations(answer))
	}
	ports := []tables.ServicePort{{Name: "web", Protocol: 6, Port: 443, TargetName: "http"}}
	w.serve("web", ports)
	leads("10.1.0.5:80", "10.1.0.5:8080")
	w.serve("web", ports, &tables.BackendSlice{Ports: []tables.BackendPort{slicePort("web", 8080), slicePort("other", 80)}})
	leads("10.1.0.5:8080")
}

// That only some backends allow it is said at once.
func TestServiceText(t *testing.T) {
	w := newWorld(t, inMemory(t))
	web, client := []netip.Addr{addr("10.1.0.5")}, []netip.Addr{addr("10.1.0.6")}
	printed := func(from string) string {
		answer, err := w.Policy(from, "10.96.0.20", "80", "")
		require.NoError(t, err)
		var text strings.Builder
		require.NoError(t, answer.Print(&text))
		return text.String()
	}
	ports := []tables.ServicePort{tcp("http", 80, 8080)}
	w.serve("", ports, &tables.BackendSlice{Addrs: client, Ports: []tables.BackendPort{slicePort("http", 8080)}},
		&tables.BackendSlice{Addrs: web, Ports: []tables.BackendPort{slicePort("http", 8081)}})
	text := printed("world")
	require.Contains(t, text, "ALLOWED (by 1 of 2 backends): service: judged after translation\n")
	require.Contains(t, text, "\n  traffic   80/tcp\n")
	require.Contains(t, text, "\n  backend   10.1.0.5:8081 (shop/web): denied (default deny NetworkPolicy/shop/web spec.ingress)\n")
	require.Contains(
		t, text, "\n  backend   10.1.0.6:8080 (shop/client): allowed (no policy selects the pod)\n",
	)
	require.Contains(t, printed("host"), "ALLOWED: service", "by all")
	w.serve("", ports, &tables.BackendSlice{Addrs: web, Ports: []tables.BackendPort{slicePort("http", 8081)}}, &tables.BackendSlice{})
	require.Contains(t, printed("world"), "DENIED: service")
}
