// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// What kubelets tell pods of DNS, and where the server really is: the router.
const (
	clusterDomain = ".svc.cluster.local."
	dnsServiceIP  = "10.96.0.10"
	dnsServerIP   = "192.0.2.1"
)

// serveDNS makes names of services known to pods, as CoreDNS does: upstream's
// tests of services use them. Only addresses of IPv4, only over UDP.
func serveDNS(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", running.Kubeconfig())
	require.NoError(t, err)
	config.QPS = -1 // no limit
	client, err := clientset.NewForConfig(config)
	require.NoError(t, err)
	conn, err := net.ListenPacket("udp", dnsServerIP+":53")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			go func(query []byte) {
				if answer, err := answerDNS(t.Context(), client, query); err == nil {
					_, _ = conn.WriteTo(answer, from)
				}
			}(append([]byte(nil), buffer[:n]...))
		}
	}()
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, dnsServiceIP, dnsServerIP))
}

// errNoName is about a name that does not exist.
var errNoName = errors.New("no such name")

func answerDNS(ctx context.Context, client clientset.Interface, query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil, err
	}
	message.Response, message.Authoritative = true, true
	message.Additionals = nil
	for _, question := range message.Questions {
		ips, err := resolve(ctx, client, question.Name.String())
		switch {
		case errors.Is(err, errNoName):
			message.RCode = dnsmessage.RCodeNameError
		case err != nil:
			message.RCode = dnsmessage.RCodeServerFailure
		}
		for _, ip := range ips {
			if question.Type != dnsmessage.TypeA {
				continue // the name exists, and has no such record
			}
			message.Answers = append(message.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: ip.As4()},
			})
		}
	}
	return message.Pack()
}

// resolve returns the addresses of a name: of a service, or of another name
// that a service stands for, or of the pods of a headless one.
func resolve(ctx context.Context, client clientset.Interface, name string) ([]netip.Addr, error) {
	service, found := strings.CutSuffix(strings.ToLower(name), clusterDomain)
	service, namespace, isService := strings.Cut(service, ".")
	if !found || !isService || strings.Contains(namespace, ".") {
		return nil, errNoName
	}
	object, err := client.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errNoName
	case err != nil:
		return nil, err
	case object.Spec.Type == corev1.ServiceTypeExternalName:
		return resolve(ctx, client, strings.TrimSuffix(object.Spec.ExternalName, ".")+".")
	case object.Spec.ClusterIP != corev1.ClusterIPNone:
		ip, err := netip.ParseAddr(object.Spec.ClusterIP)
		return []netip.Addr{ip}, err
	}
	slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				if ip, err := netip.ParseAddr(address); err == nil {
					ips = append(ips, ip)
				}
			}
		}
	}
	return ips, nil
}
