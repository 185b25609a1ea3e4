//go:build linux

// Command least is the least that any device plugin in Go does: it offers the IDs
// that it is given, registers whenever a kubelet makes its socket, and answers
// Allocate from a map. What it takes, no plugin that uses gRPC can go below.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// timeout bounds a registration, and again is when one that failed is tried again: a
// kubelet has its socket a moment before it listens.
const timeout, again = 10 * time.Second, time.Millisecond

type least struct {
	v1beta1.UnimplementedDevicePluginServer
	ids map[string]bool
}

// main takes the resource, the directory of plugins, and the IDs.
func main() {
	fmt.Fprintln(os.Stderr, "least:", run(os.Args[1], os.Args[2], os.Args[3:]))
	os.Exit(1)
}

// run serves until something fails.
func run(resource, dir string, ids []string) error {
	l := &least{ids: map[string]bool{}}
	for _, id := range ids {
		l.ids[id] = true
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	events := make([]byte, 4096)
	for n := 0; ; n++ {
		if err := l.serve(resource, dir, fmt.Sprintf("least-%d.sock", n)); err != nil {
			return err
		}
		for size := 0; !bytes.Contains(events[:size], []byte("kubelet.sock")); {
			size, err = unix.Read(fd, events)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("read events: %w", err)
			}
			size = max(size, 0)
		}
	}
}

// serve listens on a new socket and registers it. The server of an earlier kubelet
// goes on, and has no client.
func (l *least) serve(resource, dir, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	s := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(s, l)
	go func() { _ = s.Serve(listener) }()
	for {
		if err = register(ctx, resource, dir, name); err == nil {
			return nil
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return fmt.Errorf("register %s: %w", name, err)
		}
	}
}

func register(ctx context.Context, resource, dir, name string) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: name, ResourceName: resource,
	})
	return err
}

func (l *least) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (l *least) ListAndWatch(
	_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse],
) error {
	list := &v1beta1.ListAndWatchResponse{}
	for id := range l.ids {
		list.Devices = append(list.Devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (l *least) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		answer := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}}
		for _, id := range c.GetDevicesIds() {
			if !l.ids[id] {
				return nil, os.ErrNotExist
			}
			answer.CdiDevices = append(answer.CdiDevices, &v1beta1.CDIDevice{Name: "vendor.com/gpu=" + id})
		}
		resp.ContainerResponses = append(resp.ContainerResponses, answer)
	}
	return resp, nil
}
