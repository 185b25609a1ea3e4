package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a command in a pod with one container, and copies what it prints to stdout. It needs the rights to get and
// create pods/exec. The command does not end with ctx. An exit code other than 0 is an error as well.
func (c *Client) Exec(ctx context.Context, pod *corev1.Pod, command []string, stdout io.Writer) error {
	request := c.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		Param("stdout", "true")
	for _, word := range command {
		request.Param("command", word)
	}
	at := request.URL()
	socket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, at.String())
	plain, plainErr := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, at)
	executor, bothErr := remotecommand.NewFallbackExecutor(socket, plain, isUpgradeFailure)
	if err := errors.Join(err, plainErr, bothErr); err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	// A stream that ends with ctx may still copy.
	from, to := io.Pipe()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, fault := io.Copy(stdout, from)
		_ = from.CloseWithError(fault)
	}()
	// client-go logs what it returns, and that a WebSocket it closed no longer answers.
	ctx = logr.NewContext(ctx, logr.Discard())
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: to})
	_ = to.Close()
	<-copied
	return err //nolint:wrapcheck // It is the command's.
}

// isUpgradeFailure reports whether the API server or a proxy before it has no such WebSockets.
func isUpgradeFailure(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}
