package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Client is a client for core/v1 that also reaches ports of pods.
type Client struct {
	rest.Interface
	config *rest.Config
}

// maxAnswer bounds the bytes read of a pod's answer, maxFault the bytes of its error.
const (
	maxAnswer = 16 << 20
	maxFault  = 4 << 10
)

// get asks a pod for a path as its kubelet does, from the pod's loopback: the connection is a
// port-forward of the API server, which takes the right to create pods/portforward.
func (c *Client) get(ctx context.Context, pod *corev1.Pod, port, path string) ([]byte, error) {
	at := c.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	conn, err := c.dial(ctx, at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// What is read then ends.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	headers := http.Header{}
	headers.Set(corev1.PortHeader, port)
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	faults, err := conn.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward port %s: %w", port, err)
	}
	_ = faults.Close() // Nothing is written to it.
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward port %s: %w", port, err)
	}
	body, err := ask(ctx, data, "localhost:"+port, path)
	if err == nil || ctx.Err() != nil {
		return body, errors.Join(err, ctx.Err())
	}
	// The kubelet reports why it did not connect.
	_ = data.Reset()
	if fault, _ := io.ReadAll(io.LimitReader(faults, maxFault)); len(bytes.TrimSpace(fault)) > 0 {
		return nil, fmt.Errorf("forward port %s: %s", port, bytes.TrimSpace(fault))
	}
	return nil, err
}

// ask sends a request over a connection, the only one, and reads the answer.
func ask(ctx context.Context, conn io.ReadWriter, host, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return nil, fmt.Errorf("read the answer to %s: %w", path, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer to %s: %w", path, err)
	case response.StatusCode != http.StatusOK:
		text, _, _ := strings.Cut(string(body[:min(len(body), maxFault)]), "\n")
		return nil, fmt.Errorf("ask for %s: %s: %s", path, response.Status, text)
	}
	return body, nil
}

// dial upgrades a request to streams as kubectl does: in a WebSocket, or in plain SPDY where
// the API server or a proxy before it has no such WebSockets.
func (c *Client) dial(ctx context.Context, at *url.URL) (httpstream.Connection, error) {
	socket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, c.config)
	if err != nil {
		return nil, fmt.Errorf("make a port-forward: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("make a port-forward: %w", err)
	}
	plain := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	dialer := portforward.NewFallbackDialerForStreaming(socket, plain, isUpgradeFailure)
	type dialed struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan dialed, 1)
	go func() { // Dial takes no context.
		conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		done <- dialed{conn, err}
	}()
	select {
	case d := <-done:
		return d.conn, d.err
	case <-ctx.Done():
		go func() {
			if d := <-done; d.conn != nil {
				_ = d.conn.Close()
			}
		}()
		return nil, fmt.Errorf("make a port-forward: %w", ctx.Err())
	}
}
