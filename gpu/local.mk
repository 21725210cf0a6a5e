# gpu
