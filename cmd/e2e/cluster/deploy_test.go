// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"sigs.k8s.io/yaml"
)

// kustomization has the fields that deploy/ uses.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
	Images     []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

// deployed maps the path of each manifest below deploy/ to its text. The chart and the
// alerts are left out: testdata/helm and testdata/monitoring test them.
func deployed(t *testing.T) map[string][]byte {
	t.Helper()
	root, err := moduleRoot()
	require.NoError(t, err)
	files := map[string][]byte{}
	deploy := os.DirFS(filepath.Join(root, "deploy"))
	require.NoError(t, fs.WalkDir(deploy, ".", func(path string, _ fs.DirEntry, err error) error {
		if path == "helm" || path == "monitoring" {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		files[path], err = fs.ReadFile(deploy, path)
		return err
	}))
	return files
}

// decode reads one manifest strictly: an unknown or repeated field fails.
func decode[T any](t *testing.T, text []byte) *T {
	t.Helper()
	require.NotContains(t, string(text), "\n---", "one object a file")
	object := new(T)
	require.NoError(t, yaml.UnmarshalStrict(text, object))
	return object
}

func TestManifestsAreStrict(t *testing.T) {
	kinds := map[string]func(t *testing.T, text []byte){
		"Namespace":                func(t *testing.T, text []byte) { decode[corev1.Namespace](t, text) },
		"ServiceAccount":           func(t *testing.T, text []byte) { decode[corev1.ServiceAccount](t, text) },
		"ClusterRole":              func(t *testing.T, text []byte) { decode[rbacv1.ClusterRole](t, text) },
		"Role":                     func(t *testing.T, text []byte) { decode[rbacv1.Role](t, text) },
		"RoleBinding":              func(t *testing.T, text []byte) { decode[rbacv1.RoleBinding](t, text) },
		"ClusterRoleBinding":       func(t *testing.T, text []byte) { decode[rbacv1.ClusterRoleBinding](t, text) },
		"DaemonSet":                func(t *testing.T, text []byte) { decode[appsv1.DaemonSet](t, text) },
		"Deployment":               func(t *testing.T, text []byte) { decode[appsv1.Deployment](t, text) },
		"PodDisruptionBudget":      func(t *testing.T, text []byte) { decode[policyv1.PodDisruptionBudget](t, text) },
		"CustomResourceDefinition": func(t *testing.T, text []byte) { decode[apiextensionsv1.CustomResourceDefinition](t, text) },
		"Kustomization":            func(t *testing.T, text []byte) { decode[kustomization](t, text) },

		"ValidatingAdmissionPolicy": func(t *testing.T, text []byte) { decode[admissionv1.ValidatingAdmissionPolicy](t, text) },
		"ValidatingAdmissionPolicyBinding": func(t *testing.T, text []byte) {
			decode[admissionv1.ValidatingAdmissionPolicyBinding](t, text)
		},
	}
	for path, text := range deployed(t) {
		t.Run(path, func(t *testing.T) {
			var header struct {
				Kind string `json:"kind"`
			}
			require.NoError(t, yaml.Unmarshal(text, &header))
			require.Contains(t, kinds, header.Kind)
			kinds[header.Kind](t, text)
		})
	}
}

// optional are the manifests that no kustomization lists: definitions of Cilium's that
// Sluice does not need.
var optional = []string{
	"crds/ciliumcidrgroups.yaml", "crds/ciliumclusterwidenetworkpolicies.yaml", "crds/ciliumendpoints.yaml",
	"crds/ciliumendpointslices.yaml", "crds/ciliumidentities.yaml", "crds/ciliumnetworkpolicies.yaml", "crds/ciliumnodes.yaml",
	"crds/egressbgppeers.yaml", "crds/egressippools.yaml",
}

// listed returns the manifests that a kustomization of deploy/ lists.
func listed(t *testing.T, files map[string][]byte, path string) (resources []string) {
	for _, resource := range decode[kustomization](t, files[path]).Resources {
		resource = filepath.Join(filepath.Dir(path), resource)
		require.Contains(t, files, resource, "listed by %s", path)
		resources = append(resources, resource)
	}
	return resources
}

// Every manifest is listed by a kustomization, and every listed one is there.
func TestKustomizationsListEveryFile(t *testing.T) {
	files := deployed(t)
	var all, manifests []string
	for path := range files {
		if filepath.Base(path) == "kustomization.yaml" {
			all = append(all, listed(t, files, path)...)
		} else {
			manifests = append(manifests, path)
		}
	}
	require.ElementsMatch(t, manifests, append(all, optional...))
}

// kubectl delete -k deploy deletes no definition, as all policies would go with it.
func TestDefinitionsAreNotDeletedWithTheAgent(t *testing.T) {
	files := deployed(t)
	for _, path := range listed(t, files, "kustomization.yaml") {
		require.NotContains(t, string(files[path]), "CustomResourceDefinition", path)
	}
	require.ElementsMatch(t, []string{"crds/ciliumegressgatewaypolicies.yaml", "crds/nodereports.yaml"},
		listed(t, files, "crds/kustomization.yaml"))
}

// crds are the definitions of deploy/crds by their short names, as the API
// server holds them.
func crds(t *testing.T) map[string]*apiextensions.CustomResourceDefinition {
	t.Helper()
	definitions := map[string]*apiextensions.CustomResourceDefinition{}
	for path, text := range deployed(t) {
		if filepath.Dir(path) != "crds" || filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		crd := decode[apiextensionsv1.CustomResourceDefinition](t, text)
		require.Equal(t, crd.Spec.Names.Plural+".yaml", filepath.Base(path))
		internal := &apiextensions.CustomResourceDefinition{}
		require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil))
		definitions[crd.Spec.Names.ShortNames[0]] = internal
	}
	return definitions
}

// Schemas are structural, without which the API server serves no definition.
// The rest of its validation it does itself, when Start applies them.
func TestDefinitionsAreStructural(t *testing.T) {
	definitions := crds(t)
	require.Len(t, definitions, 11)
	for name, crd := range definitions {
		t.Run(name, func(t *testing.T) {
			structural, err := schema.NewStructural(crd.Spec.Validation.OpenAPIV3Schema)
			require.NoError(t, err)
			require.Empty(t, schema.ValidateStructural(nil, structural))
			if name != "eippool" && name != "ebgppeer" { // they have but one version
				require.True(t, structural.XPreserveUnknownFields,
					"fields of other versions of Cilium are kept")
			}
		})
	}
}

// writes is all that the agent writes: the report of its node, Events about it, and the taint of
// its node, which it removes.
var writes = []string{
	"/nodes patch",
	"sluice.io/nodereports create,patch",
	"/events create,patch",
}

// operatorWrites is all that the operator writes: the status of policies, and nothing that decides
// what becomes of traffic.
var operatorWrites = []string{
	"cilium.io/ciliumclusterwidenetworkpolicies/status patch",
	"cilium.io/ciliumegressgatewaypolicies/status patch",
	"cilium.io/ciliumnetworkpolicies/status patch",
	"/events create,patch",
}

// leaseRules are for the lease of the election: to create one cannot be bound to a
// name.
var leaseRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"sluice"}, Verbs: []string{"get", "update"}},
	{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
}

// announceRules are for the slices in which agents announce pods: their names are by
// nodes.
var announceRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"create", "patch"}},
}

// The roles name what they read and write, and are bound to the account of the DaemonSet, or the
// Deployment.
func TestRightsAreMinimal(t *testing.T) {
	daemonSet := decode[appsv1.DaemonSet](t, deployed(t)["daemonset.yaml"])
	requireRights(t, "rbac/", daemonSet.Spec.Template.Spec, writes, announceRules)
	require.Equal(t, Namespace, daemonSet.Namespace)
	security := daemonSet.Spec.Template.Spec.Containers[0].SecurityContext
	require.Nil(t, security.Privileged)
	require.False(t, *security.AllowPrivilegeEscalation)
	require.True(t, *security.ReadOnlyRootFilesystem)
	require.Equal(t, []corev1.Capability{"ALL"}, security.Capabilities.Drop)
	require.ElementsMatch(t, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}, security.Capabilities.Add)

	operator := decode[appsv1.Deployment](t, deployed(t)["operator/deployment.yaml"])
	require.Equal(t, Namespace, operator.Namespace)
	requireRights(t, "rbac/operator/", operator.Spec.Template.Spec, operatorWrites, leaseRules)
}

// requireRights requires that the roles in a directory of deploy/ give a pod's account the rights
// to write that are named, and no others.
func requireRights(
	t *testing.T, dir string, pod corev1.PodSpec, writes []string, inNamespace []rbacv1.PolicyRule,
) {
	t.Helper()
	files := deployed(t)
	role := decode[rbacv1.ClusterRole](t, files[dir+"clusterrole.yaml"])
	var writing []string
	for _, rule := range role.Rules {
		writes := slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return slices.Contains([]string{"get", "list", "watch"}, verb) })
		for _, resource := range rule.Resources {
			if len(writes) > 0 {
				writing = append(writing, rule.APIGroups[0]+"/"+resource+" "+strings.Join(writes, ","))
			}
		}
		require.Len(t, rule.APIGroups, 1)
		require.NotContains(t, rule.APIGroups, "*")
		require.NotContains(t, rule.Resources, "*")
		require.NotContains(t, rule.Resources, "secrets")
		require.Empty(t, rule.NonResourceURLs)
	}
	require.ElementsMatch(t, writes, writing)
	own := decode[rbacv1.Role](t, files[dir+"role.yaml"])
	require.Equal(t, Namespace, own.Namespace)
	require.Equal(t, inNamespace, own.Rules)
	account := decode[corev1.ServiceAccount](t, files[dir+"serviceaccount.yaml"])
	require.Equal(t, Namespace, account.Namespace)
	require.Equal(t, Namespace, decode[corev1.Namespace](t, files["namespace.yaml"]).Name)
	binding := decode[rbacv1.ClusterRoleBinding](t, files[dir+"clusterrolebinding.yaml"])
	require.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, binding.RoleRef)
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}, binding.Subjects)
	ownBinding := decode[rbacv1.RoleBinding](t, files[dir+"rolebinding.yaml"])
	require.Equal(t, Namespace, ownBinding.Namespace)
	require.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: own.Name}, ownBinding.RoleRef)
	require.Equal(t, binding.Subjects, ownBinding.Subjects)
	require.Equal(t, account.Name, pod.ServiceAccountName)
}

// What the DaemonSet mounts and probes agrees with the agent's flags there.
func TestDaemonSetAgreesWithItself(t *testing.T) {
	pod := decode[appsv1.DaemonSet](t, deployed(t)["daemonset.yaml"]).Spec.Template.Spec
	agent := pod.Containers[0]
	flags := map[string]string{}
	for _, arg := range agent.Args {
		name, value, ok := strings.Cut(arg, "=")
		require.True(t, ok, arg)
		flags[name] = value
	}
	mounts := map[string]string{} // path in the container -> path on the node
	for _, mount := range agent.VolumeMounts {
		for _, volume := range pod.Volumes {
			switch {
			case volume.Name != mount.Name:
			case volume.HostPath != nil:
				mounts[mount.MountPath] = volume.HostPath.Path
			default:
				mounts[mount.MountPath] = "" // of a Secret
			}
		}
	}
	require.Len(t, mounts, len(pod.Volumes), "every volume is mounted")
	require.Equal(t, flags["--bpffs"], mounts[flags["--bpffs"]])
	require.Equal(t, flags["--state-dir"], mounts[flags["--state-dir"]])
	require.Equal(t, filepath.Dir(flags["--socket"]), mounts[filepath.Dir(flags["--socket"])])
	require.Equal(t, "/proc/sys/net", mounts[flags["--procfs"]+"/sys/net"])

	for path, probe := range map[string]*corev1.Probe{
		"/startupz": agent.StartupProbe, "/readyz": agent.ReadinessProbe, "/healthz": agent.LivenessProbe,
	} {
		require.Equal(t, path, probe.HTTPGet.Path)
		require.Equal(t, flags["--api-listen"], probe.HTTPGet.Host+":"+probe.HTTPGet.Port.String())
	}
}
