// Command mellanox is Mellanox's k8s-rdma-shared-dev-plugin, without its question to
// the kernel about RDMA network namespaces: a test's kernel may have no RDMA. All else is
// that plugin's own code.
package main

import (
	"log"
	"os"
	"syscall"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
)

func main() {
	manager := resources.NewResourceManager(os.Args[1], false)
	for _, step := range []func() error{
		manager.ReadConfig, manager.ValidateConfigs, manager.DiscoverHostDevices, manager.InitServers, manager.StartAllServers,
	} {
		if err := step(); err != nil {
			log.Fatalln(err)
		}
	}
	<-resources.NewSignalNotifier(syscall.SIGTERM).Notify()
	if err := manager.StopAllServers(); err != nil {
		log.Fatalln(err)
	}
}
