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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const deployDir = "../../deploy"

// kinds are those that the chart may make.
var kinds = map[string]func() any{
	"ClusterRole":              func() any { return new(rbacv1.ClusterRole) },
	"ClusterRoleBinding":       func() any { return new(rbacv1.ClusterRoleBinding) },
	"Secret":                   func() any { return new(corev1.Secret) },
	"ConfigMap":                func() any { return new(corev1.ConfigMap) },
	"CustomResourceDefinition": func() any { return new(apiextensionsv1.CustomResourceDefinition) },
	"DaemonSet":                func() any { return new(appsv1.DaemonSet) },
	"Deployment":               func() any { return new(appsv1.Deployment) },
	"PodDisruptionBudget":      func() any { return new(policyv1.PodDisruptionBudget) },
	"NetworkPolicy":            func() any { return new(networkingv1.NetworkPolicy) },
	"PodMonitor":               func() any { return new(monitoringv1.PodMonitor) },
	"PrometheusRule":           func() any { return new(monitoringv1.PrometheusRule) },
	"Role":                     func() any { return new(rbacv1.Role) },
	"RoleBinding":              func() any { return new(rbacv1.RoleBinding) },
	"Service":                  func() any { return new(corev1.Service) },
	"ServiceAccount":           func() any { return new(corev1.ServiceAccount) },
	"ServiceMonitor":           func() any { return new(monitoringv1.ServiceMonitor) },

	"ValidatingAdmissionPolicy":        func() any { return new(admissionv1.ValidatingAdmissionPolicy) },
	"ValidatingAdmissionPolicyBinding": func() any { return new(admissionv1.ValidatingAdmissionPolicyBinding) },
}

// objects are what a chart makes, by kind and name.
type objects map[string]any

func object[T any](t *testing.T, all objects, key string) *T {
	t.Helper()
	require.Contains(t, all, key)
	return all[key].(*T)
}

// decode reads rendered templates strictly: an unknown or a repeated field fails.
func decode(t *testing.T, files map[string]string) objects {
	t.Helper()
	all := objects{}
	for path, text := range files {
		if path == "NOTES.txt" {
			continue
		}
		for _, document := range strings.Split("\n"+text, "\n---\n") {
			if strings.TrimSpace(document) == "" {
				continue
			}
			var header struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			require.NoError(t, yaml.Unmarshal([]byte(document), &header), path)
			require.Contains(t, kinds, header.Kind, path)
			into := kinds[header.Kind]()
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), into), path)
			key := header.Kind + "/" + header.Metadata.Name
			require.NotContains(t, all, key)
			all[key] = into
		}
	}
	return all
}

// renderSet renders the chart with a file of values/.
func renderSet(t *testing.T, set, kubernetes string) map[string]string {
	t.Helper()
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	values, err := readYAML(filepath.Join("values", set+".yaml"))
	require.NoError(t, err)
	files, err := render(c, values, kubernetes)
	require.NoError(t, err)
	return files
}

func keys(all objects) (keys []string) {
	for key := range all {
		keys = append(keys, key)
	}
	return keys
}

func agentOf(t *testing.T, all objects) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	pod := object[appsv1.DaemonSet](t, all, "DaemonSet/sluice").Spec.Template.Spec
	return pod, pod.Containers[0]
}

func TestObjects(t *testing.T) {
	always := []string{"DaemonSet/sluice"}
	roles := []string{"ClusterRole/sluice", "ClusterRoleBinding/sluice", "Role/sluice", "RoleBinding/sluice"}
	reports := "CustomResourceDefinition/nodereports.sluice.io"
	egress := "CustomResourceDefinition/ciliumegressgatewaypolicies.cilium.io"
	admission := []string{"ValidatingAdmissionPolicy/sluice", "ValidatingAdmissionPolicyBinding/sluice"}
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
		"all": append(slices.Concat(always, roles, admission, operator), "ServiceAccount/node-agent", reports, egress,
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

// The default is not privileged, and writes nowhere but to its volumes.
func TestSecurity(t *testing.T) {
	_, agent := agentOf(t, decode(t, renderSet(t, "default", kubeVersion)))
	s := agent.SecurityContext
	require.Nil(t, s.Privileged)
	require.False(t, *s.AllowPrivilegeEscalation)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop)
	require.Equal(t, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}, s.Capabilities.Add)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, s.SeccompProfile.Type)

	_, agent = agentOf(t, decode(t, renderSet(t, "all", kubeVersion)))
	s = agent.SecurityContext
	require.Equal(t, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"}, s.Capabilities.Add)
	require.Equal(t, corev1.SeccompProfileTypeUnconfined, s.SeccompProfile.Type)

	_, agent = agentOf(t, decode(t, renderSet(t, "none", kubeVersion)))
	s = agent.SecurityContext
	require.True(t, *s.Privileged)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.Nil(t, s.Capabilities)
	require.Nil(t, s.AllowPrivilegeEscalation, "the API server refuses it beside privileged")
	require.Nil(t, s.SeccompProfile)
}

// Before Kubernetes 1.30 an annotation says what a field says since.
func TestAppArmor(t *testing.T) {
	const annotation = "container.apparmor.security.beta.kubernetes.io/agent"
	for kubernetes, field := range map[string]bool{"v1.29.14": false, "v1.30.0": true, kubeVersion: true} {
		all := decode(t, renderSet(t, "all", kubernetes))
		template := object[appsv1.DaemonSet](t, all, "DaemonSet/sluice").Spec.Template
		require.Equal(t, field, template.Spec.Containers[0].SecurityContext.AppArmorProfile != nil, kubernetes)
		require.Equal(t, !field, template.Annotations[annotation] == "unconfined", kubernetes)
		require.Equal(t, "true", template.Annotations["example.com/scrape"])
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
	again := object[corev1.Secret](t, decode(t, renderSet(t, "default", kubeVersion)), "Secret/sluice-overlay-keys")
	require.NotEqual(t, secret.Data, again.Data)

	pod, agent := agentOf(t, all)
	require.Contains(t, agent.Args, "--overlay-keys=/etc/sluice/overlay/keys")
	require.Contains(t, agent.VolumeMounts, corev1.VolumeMount{Name: "overlay-keys", MountPath: "/etc/sluice/overlay", ReadOnly: true})
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
	files, err := render(c, map[string]any{"flags": map[string]any{"api-listen": "", "metrics-listen": "$(NODE_IP):9881"}}, kubeVersion)
	require.NoError(t, err)
	_, agent := agentOf(t, decode(t, files))
	require.Empty(t, agent.LivenessProbe.HTTPGet.Host, "no variable is expanded there")
	require.Equal(t, 9881, agent.LivenessProbe.HTTPGet.Port.IntValue())

	all := decode(t, renderSet(t, "all", kubeVersion))
	_, agent = agentOf(t, all)
	require.Equal(t, []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9881, Protocol: corev1.ProtocolTCP}}, agent.Ports)
	require.Equal(t, "metrics", *object[monitoringv1.PodMonitor](t, all, "PodMonitor/sluice").Spec.PodMetricsEndpoints[0].Port)
	require.Equal(t, "metrics", object[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor/sluice").Spec.Endpoints[0].Port)
	require.EqualValues(t, 9881, object[corev1.Service](t, all, "Service/sluice-metrics").Spec.Ports[0].Port)
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
	require.NoError(t, yaml.UnmarshalStrict(readFile(t, filepath.Join(deployDir, "monitoring/rules.yaml")), &rules))
	require.NotEmpty(t, rules.Groups[0].Rules)
	require.Equal(t, rules.Groups[0], groups[0])
	require.Equal(t, "more", groups[1].Name)

	dashboard := object[corev1.ConfigMap](t, all, "ConfigMap/sluice-dashboard")
	require.Equal(t, "1", dashboard.Labels["grafana_dashboard"])
	require.JSONEq(t, string(readFile(t, filepath.Join(deployDir, "monitoring/dashboard.json"))), dashboard.Data["sluice.json"])
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
	require.Equal(t, []string{"--bpffs=/sys/fs/bpf", "--cni-bin-dir=/opt/cni/bin", "--cni-conf-dir=/etc/cni/net.d", "--procfs=/host/proc", "--socket=/run/sluice/sluice.sock", "--state-dir=/var/lib/sluice"}, cleanup.Args)
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
		{map[string]any{"socket": "/run/other/sock"}, "--cni-run-dir=/run/other/cni", "--cni-plugin=false"},
		{map[string]any{"socket": "/run/other/sock", "cni-run-dir": "/run/other/x"}, "--cni-run-dir=/run/other/x", "/run/other/cni"},
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
		"default": {"/sys/fs/bpf": "/sys/fs/bpf", "/run/sluice": "/run/sluice", "/var/lib/sluice": "/var/lib/sluice",
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

// There are rights only for what the flags have the agent do.
func TestRights(t *testing.T) {
	resources := func(values map[string]any) (all []string) {
		c, err := loadChart(deployDir)
		require.NoError(t, err)
		files, err := render(c, values, kubeVersion)
		require.NoError(t, err)
		for _, rule := range object[rbacv1.ClusterRole](t, decode(t, files), "ClusterRole/sluice").Rules {
			all = append(all, rule.Resources...)
		}
		var own []string
		for _, rule := range object[rbacv1.Role](t, decode(t, files), "Role/sluice").Rules {
			own = append(own, rule.Resources...)
		}
		require.Equal(t, []string{"endpointslices"}, own, "each agent announces addresses")
		return all
	}
	flag := func(name string, value any) map[string]any {
		return map[string]any{"flags": map[string]any{name: value}}
	}
	policies := []string{"networkpolicies", "ciliumegressgatewaypolicies"}
	cilium := []string{"ciliumendpoints", "ciliumidentities"}
	status := []string{"nodereports"}

	require.Subset(t, resources(nil), slices.Concat(policies, status))
	require.NotSubset(t, resources(nil), cilium[:1])
	require.Subset(t, resources(flag("endpoint-source", "cilium")), cilium)
	require.Subset(t, resources(map[string]any{"rbac": map[string]any{"ciliumEndpoints": true}}), cilium)
	bgp := []string{"egressbgppeers"}
	require.NotSubset(t, resources(nil), bgp)
	require.Subset(t, resources(flag("egress-bgp", true)), bgp)
	require.Subset(t, resources(flag("object-status", true)), status)
	without := resources(flag("object-status", false))
	require.Subset(t, without, policies)
	for _, resource := range status {
		require.NotContains(t, without, resource)
	}
}

// Agents are held to their own node where Kubernetes can, unless the values say no.
func TestAdmissionPolicy(t *testing.T) {
	policy, binding := "ValidatingAdmissionPolicy/sluice", "ValidatingAdmissionPolicyBinding/sluice"
	for kubernetes, there := range map[string]bool{"v1.29.14": false, "v1.30.0": true, "v1.30.4-gke.1": true, kubeVersion: true} {
		all := decode(t, renderSet(t, "default", kubernetes))
		require.Equal(t, there, all[policy] != nil, kubernetes)
		require.Equal(t, there, all[binding] != nil, kubernetes)
	}
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	files, err := render(c, map[string]any{"admissionPolicy": false}, kubeVersion)
	require.NoError(t, err)
	all := decode(t, files)
	require.NotContains(t, all, policy)
	require.NotContains(t, all, binding)

	// It is for the account that the values name.
	all = decode(t, renderSet(t, "all", kubeVersion))
	p := object[admissionv1.ValidatingAdmissionPolicy](t, all, policy)
	require.Equal(t, "request.userInfo.username == 'system:serviceaccount:sluice-system:node-agent'", p.Spec.MatchConditions[0].Expression)
	require.Equal(t, admissionv1.Fail, *p.Spec.FailurePolicy)
	b := object[admissionv1.ValidatingAdmissionPolicyBinding](t, all, binding)
	require.Equal(t, p.Name, b.Spec.PolicyName)
	require.Equal(t, []admissionv1.ValidationAction{admissionv1.Deny}, b.Spec.ValidationActions)
}

// What is applied with its namespace goes there, and cluster-wide objects have none.
func TestNamespaces(t *testing.T) {
	for key, o := range decode(t, renderSet(t, "all", kubeVersion)) {
		wide := strings.HasPrefix(key, "ClusterRole") || strings.HasPrefix(key, "CustomResourceDefinition") ||
			strings.HasPrefix(key, "ValidatingAdmissionPolicy")
		want := namespace
		if wide {
			want = ""
		}
		require.Equal(t, want, o.(interface{ GetNamespace() string }).GetNamespace(), key)
	}
}

// Definitions outlive the release, as policies do that way, and are those of deploy/crds.
func TestDefinitions(t *testing.T) {
	definitions := 0
	for key, o := range decode(t, renderSet(t, "all", kubeVersion)) {
		crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			continue
		}
		definitions++
		require.Equal(t, "keep", crd.Annotations["helm.sh/resource-policy"], key)
		delete(crd.Annotations, "helm.sh/resource-policy")
		require.Equal(t, map[string]string{
			"argocd.argoproj.io/sync-options":   "Prune=false,Delete=false",
			"kustomize.toolkit.fluxcd.io/prune": "disabled",
		}, crd.Annotations, "GitOps tools do not delete them either: %s", key)
		crd.Labels = nil
		var want apiextensionsv1.CustomResourceDefinition
		text := readFile(t, filepath.Join(deployDir, "crds", crd.Spec.Names.Plural+".yaml"))
		require.NoError(t, yaml.UnmarshalStrict(text, &want))
		require.Equal(t, &want, crd, key)
	}
	require.Equal(t, 5, definitions)
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
	require.Contains(t, agent.VolumeMounts, corev1.VolumeMount{Name: "ledger", MountPath: "/var/log/sluice"})
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
