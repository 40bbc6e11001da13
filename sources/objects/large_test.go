// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// decodeLarge decodes an object whose specification has a list of many items.
func decodeLarge(
	t *testing.T, kind, spec string, n int, item func(addr string, i int) string,
) any {
	items := make([]string, n)
	for i := range items {
		items[i] = item(fmt.Sprintf("%d.%d.%d", i>>16, i>>8&255, i&255), i)
	}
	text := fmt.Sprintf(`{"metadata": {"name": "a", "namespace": "b"}, `+spec+`}`,
		strings.Join(items, ", "))
	require.Less(t, len(text), 3<<19, "etcd takes no larger object")
	o, err := kindNamed(t, kind).Decode([]byte(text))
	require.NoError(t, err)
	require.NoError(t, o.Err)
	require.Len(t, o.rows, 1)
	return o.rows[0]
}

// The largest objects that a tenant can write are decoded in time in proportion to their size, so
// that they do not hold up those of others: with a search of the list for each item one of them took 20 s.
func TestLargestObjects(t *testing.T) {
	const n = 60_000
	text := func(prefix, suffix string) func(string, int) string {
		return func(addr string, _ int) string { return `"` + prefix + addr + suffix + `"` }
	}
	service := `"spec": {"clusterIP": "10.96.0.1", "externalIPs": [%s]}`
	good := decodeLarge(t, "Service", service, n, text("10.", "")).(*tables.Service)
	require.Len(t, good.ExternalIPs, n)
	bad := decodeLarge(t, "Service", service, n, text("225.", "")).(*tables.Service)
	require.Empty(t, bad.ExternalIPs)
	require.Len(t, bad.Errors, maxNoted)

	slice := decodeLarge(t, "EndpointSlice",
		`"addressType": "IPv4", "endpoints": [{"addresses": [%s]}]`, n, text("10.", ""))
	require.Len(t, slice.(*tables.BackendSlice).Addrs, n)

	except := decodeLarge(t, "NetworkPolicy",
		`"spec": {"podSelector": {}, "ingress":
		[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [%s]}}]}]}`,
		n, text("10.", "/32"))
	peers := except.(*tables.NetworkPolicy).Rules[0].Ingress.Traffic[0].Peers
	require.Len(t, peers[0].Except, n)

	ports := decodeLarge(t, "NetworkPolicy",
		`"spec": {"podSelector": {}, "ingress": [{"ports": [%s]}]}`, n,
		func(_ string, i int) string { return fmt.Sprintf(`{"port": %d}`, i+1) })
	require.Len(t, ports.(*tables.NetworkPolicy).Rules[0].Ingress.Traffic[0].Ports, n)
}

func TestDistinct(t *testing.T) {
	for _, n := range []int{1, 2, 8, 100} {
		var list, want []int
		for i := range n {
			list = append(list, i, i/2)
			want = append(want, i)
		}
		require.Equal(t, want, distinct(list), n)
	}
	require.Empty(t, distinct([]int(nil)))
}

// A name of a port has few numbers in a pod: with thousands, the rulesets of others that name it
// would outgrow their share.
func TestNumbersOfNamedPort(t *testing.T) {
	pod := decodeLarge(t, "Pod", `"spec": {"containers": [%s]}`, 5000, func(_ string, i int) string {
		return fmt.Sprintf(`{"ports": [{"name": "http", "containerPort": %d}]}`, i+1)
	}).(*tables.Endpoint)
	require.Len(t, pod.LabelSet.NamedPorts, maxNumbers)
	require.Len(t, pod.Errors, maxNoted)
}

// A slice of a service is that, whatever labels its author gives it, and it serves as kube-proxy
// has it: by what is ready, or serves while it terminates.
func TestSliceOfService(t *testing.T) {
	for _, test := range []struct {
		labels, conditions string
		serves             bool
	}{
		{"", "", true},
		{`, "endpointslice.kubernetes.io/managed-by": "sluice.net"`, "", true},
		{`, "service.kubernetes.io/headless": ""`, "", false},
		{"", `"ready": false`, false},
		{"", `"ready": false, "serving": true`, false},
		{"", `"ready": false, "serving": true, "terminating": true`, true},
	} {
		text := fmt.Sprintf(`{"metadata": {"name": "a", "namespace": "b", "labels":
			{"kubernetes.io/service-name": "web"%s}}, "addressType": "IPv4", "ports": [{"port": 80}],
			"endpoints": [{"addresses": ["203.000.113.01"], "conditions": {%s},
			"targetRef": {"kind": "Pod", "name": "web"}}]}`, test.labels, test.conditions)
		o, err := kindNamed(t, "EndpointSlice").Decode([]byte(text))
		require.NoError(t, err)
		s := o.rows[0].(*tables.BackendSlice)
		require.Equal(t, test.serves, s.Serves != 0, text)
		require.Equal(t, "203.0.113.1", s.PodAddrs[0].String())
		require.Empty(t, s.Pods)
	}
}
