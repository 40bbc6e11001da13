// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-net/sluice/sources/objects"
)

// Of a kind of which one object is read, that alone is asked for, as it is now: more is not
// permitted, and an old one could be older than what was read before a restart.
func TestOnlyOneObject(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		asked = append(asked, r.URL.Path+" "+query.Get("fieldSelector")+" "+query.Get("watch")+" "+
			query.Get("resourceVersion"))
		w.Header().Set("Content-Type", "application/json")
		if query.Get("watch") == "" {
			_, err := w.Write([]byte(
				`{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "5"}}`))
			require.NoError(t, err)
		}
	}))
	defer s.Close()
	k := objects.EgressVotersKind("agents")
	api, err := newServer(&rest.Config{Host: s.URL}, []*objects.Kind{k}, defaultBounds)
	require.NoError(t, err)

	list, err := api.list(t.Context(), k, metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	require.Equal(t, "5", list.ResourceVersion)
	w, err := api.watch(t.Context(), k, metav1.ListOptions{ResourceVersion: "5"})
	require.NoError(t, err)
	w.Stop()
	const path = "/api/v1/namespaces/agents/configmaps metadata.name=sluice-egress-voters "
	require.Equal(t, []string{path + " ", path + "true 5"}, asked)
}
