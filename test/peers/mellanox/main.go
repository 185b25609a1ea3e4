// Command mellanox is Mellanox's k8s-rdma-shared-dev-plugin without its question for the mode of RDMA's network
// namespaces: it ends where the kernel has no RDMA, and tests run on such machines.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
)

// main takes the path of the plugin's configuration.
func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mellanox config.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "mellanox:", err)
		os.Exit(1)
	}
}

func run(config string) error {
	m := resources.NewResourceManager(config, false)
	for _, step := range []func() error{
		m.ReadConfig, m.ValidateConfigs, m.DiscoverHostDevices, m.InitServers, m.StartAllServers,
	} {
		if err := step(); err != nil {
			return errors.Join(err, m.StopAllServers())
		}
	}
	end := m.PeriodicUpdate()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	<-signals
	end()
	return m.StopAllServers()
}
