//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/heddle-dev/heddle/test/cluster/internal/nodens"
)

// service makes a Service's address answer on the node.
func service(ctx context.Context, fs *flag.FlagSet, args []string) error {
	var at netip.AddrPort
	fs.Func("at", "the Service's address and port", func(s string) (err error) {
		at, err = netip.ParseAddrPort(s)
		return err
	})
	namespace := fs.String("namespace", "default", "the Service's namespace")
	name := fs.String("name", "", "the Service")
	pki := fs.String("pki", "", "directory with ca.crt, admin.crt and admin.key")
	api := fs.String("api", "", "address and port of the API server")
	ready := fs.String("ready", "", "file to create when it listens")
	if err := fs.Parse(args); err != nil {
		return err
	}
	client, err := apiClient(*pki)
	if err != nil {
		return err
	}
	l, err := nodens.ListenService(ctx, at)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*ready, nil, 0o600); err != nil {
		return err
	}
	slices := url.URL{
		Scheme: "https", Host: *api, Path: "/apis/discovery.k8s.io/v1/namespaces/" + *namespace + "/endpointslices",
		RawQuery: url.Values{"labelSelector": {"kubernetes.io/service-name=" + *name}}.Encode(),
	}
	return nodens.Serve(ctx, l, func(ctx context.Context) ([]string, error) {
		return endpoints(ctx, client, slices.String())
	})
}

func apiClient(pki string) (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read cluster authority: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	config := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}, nil
}

// endpoints lists the ready endpoints, each at the first port of its slice.
func endpoints(ctx context.Context, client *http.Client, url string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list endpoints: %s", resp.Status)
	}
	return parseEndpoints(body)
}

// parseEndpoints reads an EndpointSliceList. An endpoint whose readiness is not
// reported is ready.
func parseEndpoints(body []byte) ([]string, error) {
	var list struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []string `json:"addresses"`
				Conditions struct {
					Ready *bool `json:"ready"`
				} `json:"conditions"`
			} `json:"endpoints"`
			Ports []struct {
				Port int `json:"port"`
			} `json:"ports"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("parse endpoints: %w", err)
	}
	var out []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if len(slice.Ports) > 0 && len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(slice.Ports[0].Port)))
			}
		}
	}
	return out, nil
}
