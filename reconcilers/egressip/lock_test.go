// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/sluice-net/sluice/tables"
)

// A lease that another node has by now is not given back in its name, and one that was renewed
// a moment ago is not renewed.
func TestLock(t *testing.T) {
	client := fake.NewClientset()
	l := newLock(params{
		Connection: Connection{Leases: client.CoordinationV1(), Namespace: "sluice-system"},
		Config:     DefaultConfig, LocalNode: tables.LocalNode{Name: "node-1"},
	}, v4)
	renewals := 0
	l.renewed = func(uint64, uint32) error { renewals++; return nil }
	l.asked = func(err error) { require.NoError(t, err) }
	ours := resourcelock.LeaderElectionRecord{HolderIdentity: "node-1"}
	none := resourcelock.LeaderElectionRecord{}
	require.NoError(t, l.Create(t.Context(), ours))
	require.NoError(t, l.Update(t.Context(), ours))
	require.Equal(t, 1, renewals)
	l.every = 0
	require.NoError(t, l.Update(t.Context(), ours))
	require.Equal(t, 2, renewals)

	leases := client.CoordinationV1().Leases("sluice-system")
	lease, err := leases.Get(t.Context(), leaseName(v4), metav1.GetOptions{})
	require.NoError(t, err)
	other := "node-2"
	lease.Spec.HolderIdentity = &other
	_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	l.release.Store(true)
	_, _, err = l.Get(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, l.Update(t.Context(), none), errKept)
	require.NoError(t, l.Update(t.Context(), ours), "as the elector does it only when it has run out")
	_, _, err = l.Get(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Update(t.Context(), none))
	lease, err = leases.Get(t.Context(), leaseName(v4), metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, *lease.Spec.HolderIdentity)
}
