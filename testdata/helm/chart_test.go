// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/cli/values"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

func TestObjects(t *testing.T) {
	always := []string{"DaemonSet/sluice"}
	roles := []string{"ClusterRole/sluice", "ClusterRoleBinding/sluice", "Role/sluice",
		"RoleBinding/sluice"}
	reports := "CustomResourceDefinition/nodereports.sluice.io"
	egress := "CustomResourceDefinition/ciliumegressgatewaypolicies.cilium.io"
	admission := []string{"ValidatingAdmissionPolicy/sluice",
		"ValidatingAdmissionPolicyBinding/sluice"}
	ordinary := slices.Concat(always, roles, admission, []string{"ServiceAccount/sluice", reports})
	operator := []string{
		"Deployment/sluice-operator", "PodDisruptionBudget/sluice-operator",
		"ServiceAccount/sluice-operator", "ClusterRole/sluice-operator",
		"ClusterRoleBinding/sluice-operator", "Role/sluice-operator", "RoleBinding/sluice-operator",
	}
	running := slices.Concat(ordinary, operator)
	for set, want := range map[string][]string{
		"default": slices.Concat(running, []string{egress, "Secret/sluice-overlay-keys"}),
		"digest":  slices.Concat(running, []string{egress, "Secret/sluice-overlay-keys"}),
		"cleanup": slices.Concat(ordinary, []string{egress}),
		"cilium":  slices.Concat(running, []string{"Secret/sluice-overlay-keys"}),
		"none":    append(always, "Secret/sluice-overlay-keys"),
		"all": append(slices.Concat(always, roles, admission, operator),
			"ServiceAccount/node-agent", reports, egress,
			"PodMonitor/sluice-operator", "NetworkPolicy/sluice-operator",
			"Service/sluice-operator-metrics", "ServiceMonitor/sluice-operator",
			"CustomResourceDefinition/ciliumcidrgroups.cilium.io",
			"CustomResourceDefinition/ciliumclusterwidenetworkpolicies.cilium.io",
			"CustomResourceDefinition/ciliumnetworkpolicies.cilium.io",
			"PodMonitor/sluice", "ServiceMonitor/sluice", "Service/sluice-metrics", "PrometheusRule/sluice",
			"ConfigMap/sluice-dashboard", "NetworkPolicy/sluice", "Secret/sluice-overlay-keys"),
	} {
		t.Run(set, func(t *testing.T) {
			require.ElementsMatch(t, want, keys(decode(t, renderSet(t, set, kubeVersion))))
		})
	}
}

func TestArguments(t *testing.T) {
	_, agent := agentOf(t, decode(t, renderSet(t, "all", kubeVersion)))
	require.Equal(t, []string{
		"--api-listen=[::1]:9880",
		"--audit-interval=10m",
		"--backstop=false",
		"--bpf=kernel",
		"--bpffs=/sys/fs/bpf",
		"--cluster-cidrs=10.0.0.0/8,fd00::/8",
		"--cni-bin-dir=/opt/cni/bin", "--cni-conf-dir=/etc/cni/net.d", "--cni-plugin=true",
		"--events-buffer=16777216",
		"--log-format=json",
		"--metrics-listen=:9881",
		"--overlay-accept-unsigned=true", "--overlay-keys=/etc/sluice/overlay/keys",
		"--procfs=/host/proc",
		"--socket=/run/sluice/sluice.sock",
		"--source=kubernetes",
		"--state-dir=/var/lib/sluice",
		"--log-level=debug",
	}, agent.Args)
	require.Equal(t, "192.0.2.1", agent.Env[2].Value)
}

// The key is made once, is another one in each installation, and comes to the agent by a mount that
// may be empty: it has no right to read it.
func TestOverlayKeys(t *testing.T) {
	all := decode(t, renderSet(t, "default", kubeVersion))
	secret := object[corev1.Secret](t, all, "Secret/sluice-overlay-keys")
	require.Regexp(t, "^[0-9a-f]{32}$", string(secret.Data["keys"]))
	require.Equal(t, "keep", secret.Annotations["helm.sh/resource-policy"])
	again := object[corev1.Secret](t, decode(t, renderSet(t, "default", kubeVersion)),
		"Secret/sluice-overlay-keys")
	require.NotEqual(t, secret.Data, again.Data)

	pod, agent := agentOf(t, all)
	require.Contains(t, agent.Args, "--overlay-keys=/etc/sluice/overlay/keys")
	require.Contains(t, agent.VolumeMounts,
		corev1.VolumeMount{Name: "overlay-keys", MountPath: "/etc/sluice/overlay", ReadOnly: true})
	for _, v := range pod.Volumes {
		if v.Name == "overlay-keys" {
			require.Equal(t, secret.Name, v.Secret.SecretName)
			require.True(t, *v.Secret.Optional)
			require.EqualValues(t, 0o400, *v.Secret.DefaultMode)
			require.Equal(t, []corev1.KeyToPath{{Key: "keys", Path: "keys"}}, v.Secret.Items)
			return
		}
	}
	t.Fatal("no volume")
}

// The kubelet and Prometheus ask where the flags let the agent listen.
func TestPorts(t *testing.T) {
	for set, want := range map[string]string{"default": "127.0.0.1:9880", "all": "::1:9880", "none": "127.0.0.1:9881"} {
		_, agent := agentOf(t, decode(t, renderSet(t, set, kubeVersion)))
		for path, probe := range map[string]*corev1.Probe{"/startupz": agent.StartupProbe, "/readyz": agent.ReadinessProbe, "/healthz": agent.LivenessProbe} {
			require.Equal(t, path, probe.HTTPGet.Path)
			require.Equal(t, want, probe.HTTPGet.Host+":"+probe.HTTPGet.Port.String(), set)
		}
	}
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	files, err := render(c,
		map[string]any{"flags": map[string]any{"api-listen": "",
			"metrics-listen": "$(NODE_IP):9881"}}, kubeVersion)
	require.NoError(t, err)
	_, agent := agentOf(t, decode(t, files))
	require.Empty(t, agent.LivenessProbe.HTTPGet.Host, "no variable is expanded there")
	require.Equal(t, 9881, agent.LivenessProbe.HTTPGet.Port.IntValue())

	all := decode(t, renderSet(t, "all", kubeVersion))
	_, agent = agentOf(t, all)
	require.Equal(t, []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9881,
		Protocol: corev1.ProtocolTCP}}, agent.Ports)
	require.Equal(t, "metrics",
		*object[monitoringv1.PodMonitor](t, all, "PodMonitor/sluice").Spec.PodMetricsEndpoints[0].Port)
	require.Equal(t, "metrics",
		object[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor/sluice").Spec.Endpoints[0].Port)
	require.EqualValues(t, 9881,
		object[corev1.Service](t, all, "Service/sluice-metrics").Spec.Ports[0].Port)
	rule := object[networkingv1.NetworkPolicy](t, all, "NetworkPolicy/sluice").Spec.Ingress[0]
	require.Equal(t, 9881, rule.Ports[0].Port.IntValue())
	require.Len(t, rule.From, 1)
}

// The alerts and the dashboard are those of deploy/monitoring, with what is added.
func TestMonitoring(t *testing.T) {
	all := decode(t, renderSet(t, "all", kubeVersion))
	groups := object[monitoringv1.PrometheusRule](t, all, "PrometheusRule/sluice").Spec.Groups
	require.Len(t, groups, 2)
	var rules struct{ Groups []monitoringv1.RuleGroup }
	require.NoError(t, yaml.UnmarshalStrict(readFile(t,
		filepath.Join(deployDir, "monitoring/rules.yaml")), &rules))
	require.NotEmpty(t, rules.Groups[0].Rules)
	require.Equal(t, rules.Groups[0], groups[0])
	require.Equal(t, "more", groups[1].Name)

	dashboard := object[corev1.ConfigMap](t, all, "ConfigMap/sluice-dashboard")
	require.Equal(t, "1", dashboard.Labels["grafana_dashboard"])
	require.JSONEq(t, string(readFile(t, filepath.Join(deployDir, "monitoring/dashboard.json"))),
		dashboard.Data["sluice.json"])
}

// What cleans up a node has the rights and the paths of the agent, which does not run.
func TestCleanup(t *testing.T) {
	before, agent := agentOf(t, decode(t, renderSet(t, "default", kubeVersion)))
	pod, waits := agentOf(t, decode(t, renderSet(t, "cleanup", kubeVersion)))
	cleanup := pod.InitContainers[0]
	require.Len(t, pod.Containers, 1)
	require.Equal(t, "registry.k8s.io/pause:3.10", waits.Image)
	require.Nil(t, waits.ReadinessProbe)
	require.Nil(t, waits.StartupProbe)
	require.Empty(t, waits.VolumeMounts)

	require.Equal(t, []string{"/sluice", "cleanup"}, cleanup.Command)
	require.Equal(t, []string{"--bpffs=/sys/fs/bpf", "--cni-bin-dir=/opt/cni/bin",
		"--cni-conf-dir=/etc/cni/net.d", "--procfs=/host/proc",
		"--socket=/run/sluice/sluice.sock", "--state-dir=/var/lib/sluice"}, cleanup.Args)
	require.Subset(t, agent.Args, cleanup.Args)
	require.Equal(t, agent.Image, cleanup.Image)
	require.Equal(t, agent.SecurityContext, cleanup.SecurityContext)
	// It has all that the agent has, but the keys of the overlay.
	require.Equal(t, slices.DeleteFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "overlay-keys" }), cleanup.VolumeMounts)
	require.Equal(t, slices.DeleteFunc(before.Volumes, func(v corev1.Volume) bool { return v.Name == "overlay-keys" }), pod.Volumes)
	require.True(t, pod.HostNetwork)
}

// The plugin is on, unless it could not work; and what it tells is where the socket is.
func TestCNIPlugin(t *testing.T) {
	for _, tc := range []struct {
		flags          map[string]any
		want, noneElse string
	}{
		{map[string]any{}, "--cni-plugin=true", "--cni-run-dir"},
		{map[string]any{"cni-plugin": false}, "--cni-plugin=false", "--cni-run-dir"},
		{map[string]any{"endpoint-source": "cilium"}, "--cni-plugin=false", "--cni-run-dir"},
		{map[string]any{"socket": ""}, "--cni-plugin=false", "--cni-run-dir"},
		{map[string]any{"socket": "/run/other/sock"}, "--cni-run-dir=/run/other/cni",
			"--cni-plugin=false"},
		{map[string]any{"socket": "/run/other/sock", "cni-run-dir": "/run/other/x"},
			"--cni-run-dir=/run/other/x", "/run/other/cni"},
	} {
		c, err := loadChart(deployDir)
		require.NoError(t, err)
		files, err := render(c, map[string]any{"flags": tc.flags}, kubeVersion)
		require.NoError(t, err)
		_, agent := agentOf(t, decode(t, files))
		require.Contains(t, agent.Args, tc.want)
		require.NotContains(t, strings.Join(agent.Args, " "), tc.noneElse)
	}
}

// The directories of the CNI are mounted also without the plugin, which may have to be
// removed, and not where the values say that it is. A cleanup always has them.
func TestCNIMounts(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	const conf, bin = "/etc/cni/net.d", "/opt/cni/bin"
	for _, cleanup := range []bool{false, true} {
		for _, mounted := range []bool{false, true} {
			files, err := render(c, map[string]any{
				"flags": map[string]any{"cni-plugin": false}, "cniMounts": mounted,
				"cleanup": map[string]any{"enabled": cleanup},
			}, kubeVersion)
			require.NoError(t, err)
			pod, agent := agentOf(t, decode(t, files))
			if cleanup {
				agent = pod.InitContainers[0]
			}
			var volumes, mounts []string
			for _, volume := range pod.Volumes {
				if volume.HostPath != nil {
					volumes = append(volumes, volume.HostPath.Path)
				}
			}
			for _, mount := range agent.VolumeMounts {
				mounts = append(mounts, mount.MountPath)
			}
			for _, paths := range [][]string{volumes, mounts} {
				require.Contains(t, paths, "/var/lib/sluice")
				require.Equal(t, mounted || cleanup, slices.Contains(paths, conf), paths)
				require.Equal(t, mounted || cleanup, slices.Contains(paths, bin), paths)
			}
		}
	}
	_, err = render(c, map[string]any{"cniMounts": false}, kubeVersion)
	require.ErrorContains(t, err, "cniMounts=false needs flags.cni-plugin=false")
}

// Every volume but that of the overlay's keys is one of the node that a flag names, and is mounted
// where the flag says.
func TestVolumes(t *testing.T) {
	for set, want := range map[string]map[string]string{
		"default": {"/sys/fs/bpf": "/sys/fs/bpf", "/run/sluice": "/run/sluice",
			"/var/lib/sluice": "/var/lib/sluice",
			"/var/run/cilium": "/var/run/cilium", "/host/proc/sys/net": "/proc/sys/net",
			"/etc/cni/net.d": "/etc/cni/net.d", "/opt/cni/bin": "/opt/cni/bin"},
		"none": {"/sys/fs/bpf": "/sys/fs/bpf", "/var/lib/sluice": "/var/lib/sluice",
			"/var/run/cilium": "/var/run/cilium", "/host/proc/sys/net": "/proc/sys/net",
			"/etc/cni/net.d": "/etc/cni/net.d", "/opt/cni/bin": "/opt/cni/bin"},
	} {
		pod, agent := agentOf(t, decode(t, renderSet(t, set, kubeVersion)))
		paths := map[string]string{}
		for _, volume := range pod.Volumes {
			if volume.HostPath != nil {
				paths[volume.Name] = volume.HostPath.Path
			}
		}
		got := map[string]string{}
		for _, mount := range agent.VolumeMounts {
			if mount.Name != "overlay-keys" {
				got[mount.MountPath] = paths[mount.Name]
			}
		}
		require.Equal(t, want, got, set)
		require.Len(t, paths, len(want), set)
	}
}

func TestImage(t *testing.T) {
	for set, want := range map[string]string{
		"default": "ghcr.io/sluice-net/sluice:latest",
		"all":     "ghcr.io/sluice-net/sluice:v1.2.3",
		"digest":  "registry.example:5000/network/sluice@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
	} {
		_, agent := agentOf(t, decode(t, renderSet(t, set, kubeVersion)))
		require.Equal(t, want, agent.Image)
	}
}

// A tag may be a number, as it is for --set image.tag=1. What a number would have lost
// is not: --set has 1.10 as text, and a file of values has to.
func TestImageTags(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	for _, tc := range []struct {
		set, file, want string // --set, a file of values, what runs
	}{
		{set: "image.tag=1", want: "1"},
		{set: "image.tag=1.10", want: "1.10"},
		{set: "image.tag=20260102030405", want: "20260102030405"},
		{set: "image.tag=0", want: "0"},
		{set: "image.tag=", want: "latest"},
		{file: "image: {tag: 1}", want: "1"},
		{file: "image: {tag: 20260102030405}", want: "20260102030405"},
		{file: `image: {tag: "1.10"}`, want: "1.10"},
	} {
		options := values.Options{}
		if tc.set != "" {
			options.Values = []string{tc.set}
		}
		if tc.file != "" {
			path := filepath.Join(t.TempDir(), "values.yaml")
			require.NoError(t, os.WriteFile(path, []byte(tc.file), 0o600))
			options.ValueFiles = []string{path}
		}
		merged, err := options.MergeValues(nil)
		require.NoError(t, err)
		files, err := render(c, merged, kubeVersion)
		require.NoError(t, err, "%+v", tc)
		_, agent := agentOf(t, decode(t, files))
		require.Equal(t, "ghcr.io/sluice-net/sluice:"+tc.want, agent.Image, "%+v", tc)
		require.Contains(t, files["NOTES.txt"], agent.Image+" runs on the nodes")
	}
}

// The notes say what the values leave to do.
func TestNotes(t *testing.T) {
	notes := renderSet(t, "all", kubeVersion)["NOTES.txt"]
	require.Contains(t, notes, "kubectl -n sluice-system rollout status daemonset/sluice")
	require.Contains(t, notes, "firewall of the nodes close TCP port 9881")
	notes = renderSet(t, "default", kubeVersion)["NOTES.txt"]
	require.Contains(t, notes, "flags.metrics-listen=:9881 opens them")
	require.NotContains(t, notes, "NetworkPolicy")
}

// The ledger's directory is the node's, if there is a ledger: what it has must outlive the pod.
func TestLedger(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	values := map[string]any{"flags": map[string]any{"ledger-file": "/var/log/sluice/ledger.jsonl"}}
	rendered, err := render(c, values, kubeVersion)
	require.NoError(t, err)
	pod, agent := agentOf(t, decode(t, rendered))
	require.Contains(t, agent.Args, "--ledger-file=/var/log/sluice/ledger.jsonl")
	require.Contains(t, agent.VolumeMounts,
		corev1.VolumeMount{Name: "ledger", MountPath: "/var/log/sluice"})
	for _, v := range pod.Volumes {
		if v.Name == "ledger" {
			require.Equal(t, "/var/log/sluice", v.HostPath.Path)
			return
		}
	}
	t.Fatal("no volume")
}

// The files that flags of the ledger name are those of a Secret.
func TestLedgerSecret(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	values := map[string]any{
		"ledger": map[string]any{"secret": "collector"},
		"flags": map[string]any{
			"ledger-otlp-endpoint": "https://collector:4318",
			"ledger-otlp-ca-file":  "/etc/sluice/ledger/ca.crt",
		},
	}
	rendered, err := render(c, values, kubeVersion)
	require.NoError(t, err)
	pod, agent := agentOf(t, decode(t, rendered))
	require.Contains(t, agent.Args, "--ledger-otlp-ca-file=/etc/sluice/ledger/ca.crt")
	require.Contains(t, agent.VolumeMounts, corev1.VolumeMount{
		Name: "ledger-secret", MountPath: "/etc/sluice/ledger", ReadOnly: true,
	})
	for _, v := range pod.Volumes {
		if v.Name == "ledger-secret" {
			require.Equal(t, "collector", v.Secret.SecretName)
			return
		}
	}
	t.Fatal("no volume")
}
