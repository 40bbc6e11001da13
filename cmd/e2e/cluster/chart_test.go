// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const helmVariable = "SLUICE_E2E_HELM"

// release is the chart as Helm installs it.
type release struct {
	*Cluster
	helm, kubeconfig, chart string
}

// helmTimeout bounds one command; it waits for nothing but the API server.
const helmTimeout = 2 * time.Minute

// run runs a command of Helm, and returns what it says.
func (r release) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), helmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.helm, append(args, "--namespace="+Namespace)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(r.kubeconfig), "KUBECONFIG="+r.kubeconfig)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r release) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.run(args...)
	require.NoError(t, err, "helm %s: %s", strings.Join(args, " "), out)
	return out
}

func (r release) daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	d, err := r.Client().AppsV1().DaemonSets(Namespace).Get(t.Context(), "sluice", metav1.GetOptions{})
	require.NoError(t, err)
	return d
}

// gone fails while an object of the release is there.
func (r release) gone(t *testing.T) {
	t.Helper()
	_, err := r.Client().AppsV1().DaemonSets(Namespace).Get(t.Context(), "sluice", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = r.Client().RbacV1().ClusterRoles().Get(t.Context(), "sluice", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	admission := r.Client().AdmissionregistrationV1()
	_, err = admission.ValidatingAdmissionPolicies().Get(t.Context(), "sluice", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Get(t.Context(), "sluice", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// mayList reports whether a service account may list a resource of cilium.io.
func (r release) mayList(t *testing.T, account, resource string) bool {
	t.Helper()
	review, err := r.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + Namespace + ":" + account,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: "cilium.io", Resource: resource},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return review.Status.Allowed
}

// definition returns the CRD of egress policies.
func (r release) definition(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	crd, err := r.Dynamic().Resource(crds).Get(t.Context(), "ciliumegressgatewaypolicies.cilium.io", metav1.GetOptions{})
	require.NoError(t, err)
	return crd
}

func (r release) shortNames(t *testing.T) []string {
	t.Helper()
	names, _, err := unstructured.NestedStringSlice(r.definition(t).Object, "spec", "names", "shortNames")
	require.NoError(t, err)
	return names
}

// olderChart is the chart with another version, and another definition.
func olderChart(t *testing.T, chart string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sluice")
	require.NoError(t, exec.Command("cp", "--recursive", "--dereference", chart, dir).Run())
	for path, replace := range map[string][2]string{
		"Chart.yaml": {"version: 0.0.0-devel", "version: 0.0.0-alpha"},
		"files/crds/ciliumegressgatewaypolicies.yaml": {"shortNames: [cegp]", "shortNames: [older]"},
	} {
		path = filepath.Join(dir, path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(text, []byte(replace[0])), path)
		require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(replace[0]), []byte(replace[1]), 1), 0o600))
	}
	return dir
}

// withoutOperator turns off the kinds of the Prometheus operator, which is not here;
// testdata/helm reads them into its types.
const withoutOperator = "--set=metrics.podMonitor.enabled=false,metrics.serviceMonitor.enabled=false,metrics.prometheusRule.enabled=false"

// TestChart installs the chart as users do: the API server takes all that it makes.
func TestChart(t *testing.T) {
	helm := os.Getenv(helmVariable)
	if helm == "" {
		t.Fatalf("%s is not set; make helm builds it as bin/helm", helmVariable)
	}
	root, err := moduleRoot()
	require.NoError(t, err)
	c := startEmpty(t, Binary(t))
	r := release{Cluster: c, helm: helm, kubeconfig: c.writeKubeconfig(adminToken), chart: filepath.Join(root, "deploy/helm/sluice")}

	sets, err := filepath.Glob(filepath.Join(root, "testdata/helm/values/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, sets)
	for _, values := range sets {
		t.Run("installed with "+filepath.Base(values), func(t *testing.T) {
			r.must(t, "install", "sluice", r.chart, "--create-namespace", "--values="+values, withoutOperator)
			r.daemonSet(t)
			r.must(t, "uninstall", "sluice")
			r.gone(t)
		})
	}
	t.Run("packaged", func(t *testing.T) {
		dir := t.TempDir()
		r.must(t, "lint", r.chart, "--strict")
		r.must(t, "package", r.chart, "--version=1.2.3", "--destination="+dir)
		r.must(t, "install", "sluice", filepath.Join(dir, "sluice-1.2.3.tgz"))
		require.Equal(t, "sluice-1.2.3", r.definition(t).GetLabels()["helm.sh/chart"])
		r.must(t, "uninstall", "sluice")
	})
	t.Run("bad values leave nothing", func(t *testing.T) {
		out, err := r.run("install", "sluice", r.chart, "--set=flags.map-sizes=1")
		require.Error(t, err)
		require.Contains(t, out, "at '/flags': additional properties 'map-sizes' not allowed")
		r.gone(t)
	})
	t.Run("rights follow the flags", func(t *testing.T) {
		r.must(t, "install", "sluice", r.chart)
		require.True(t, r.mayList(t, "sluice", "ciliumegressgatewaypolicies"))
		require.False(t, r.mayList(t, "sluice", "ciliumidentities"))
		r.must(t, "upgrade", "sluice", r.chart, "--set=flags.endpoint-source=cilium")
		require.True(t, r.mayList(t, "sluice", "ciliumidentities"))
		r.must(t, "uninstall", "sluice")
		require.False(t, r.mayList(t, "sluice", "ciliumegressgatewaypolicies"))
	})
	t.Run("an upgrade reaches definitions and pods, and objects stay", func(t *testing.T) { upgrade(t, r) })
}

func upgrade(t *testing.T, r release) {
	r.must(t, "install", "sluice", olderChart(t, r.chart))
	require.Equal(t, []string{"older"}, r.shortNames(t))
	r.Apply(policy)
	before := r.daemonSet(t)

	r.must(t, "upgrade", "sluice", r.chart)
	require.Equal(t, []string{"cegp"}, r.shortNames(t))
	after := r.daemonSet(t)
	require.Equal(t, before.Generation, after.Generation, "the same flags restart no agent")

	r.must(t, "upgrade", "sluice", r.chart, "--set=flags.map-size-policy=262144")
	after = r.daemonSet(t)
	require.Equal(t, before.Generation+1, after.Generation)
	require.Contains(t, after.Spec.Template.Spec.Containers[0].Args, "--map-size-policy=262144")

	r.must(t, "rollback", "sluice", "1")
	require.Equal(t, []string{"older"}, r.shortNames(t))
	require.Equal(t, before.Spec.Template, r.daemonSet(t).Spec.Template)

	r.must(t, "uninstall", "sluice")
	r.gone(t)
	policies := schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumegressgatewaypolicies"}
	_, err := r.Dynamic().Resource(policies).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err, "its definition, and so the policy, has stayed")

	r.must(t, "install", "sluice", r.chart)
	require.Equal(t, []string{"cegp"}, r.shortNames(t), "a new release takes the definition over")
}
